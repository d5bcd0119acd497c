#!/usr/bin/env python3
"""Drives the dashboard of a running server in a real browser.

    dashboard.py BASE_URL FOLDER [--key KEY] [--user NAME] [--timeout SECONDS] [--browser PATH] [--driver PATH]

Adds a fact about a user, finds it, edits it, asks for it in the chat with injected memory, forgets it, and looks at
themes, keyboard, narrow windows, and the browser's console. FOLDER gets a screenshot of each step. Exits with 1 and
says which step failed when one does. Needs selenium, and Debian's chromium and chromium-driver.

The user gets a name of its own in each run, and all that was remembered of it is forgotten at the end.
"""

import argparse
import pathlib
import shutil
import sys
import time

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SUBJECT = "umbrella stand"
FACT = "The spare attic key hangs inside the copper umbrella stand."
EDITED = "The spare attic key hangs inside the brass umbrella stand."
QUESTION = "Where does the spare attic key hang?"


def harmless(message):
    """The browser asks for an icon by itself, and a user without facts may be one that the server does not know."""
    return "/favicon.ico" in message or ("/v1/memories?" in message and "404" in message)


class Failed(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failed(message)


class Dashboard:
    """The page, with the waits that a live page needs."""

    def __init__(self, driver, options):
        self.driver = driver
        self.base = options.base.rstrip("/")
        self.folder = options.folder
        self.user = options.user
        self.key = options.key
        self.timeout = options.timeout
        self.shots = 0

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.find(selector).text

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def wait(self, what, condition, timeout=None):
        """Waits until condition() is true and returns what it returned. Rows are drawn anew while it looks."""
        ignored = (StaleElementReferenceException, NoSuchElementException)
        try:
            return WebDriverWait(self.driver, timeout or self.timeout, 0.1, ignored).until(lambda _: condition())
        except TimeoutException:
            alerts = [a.text for a in self.all("[role=alert]") if a.is_displayed() and a.text]
            says = f"; the page says: {' | '.join(alerts)}" if alerts else ""
            raise Failed(f"waited in vain for {what}{says}") from None

    def click(self, selector):
        element = self.find(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def focused(self):
        return self.driver.switch_to.active_element

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def open(self, fragment):
        self.driver.get(f"{self.base}/{fragment}")
        self.wait("a status from the server", lambda: self.text("#version").startswith("v"))

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def shot(self, name):
        self.shots += 1
        self.driver.save_screenshot(str(self.folder / f"{self.shots:02d}-{name}.png"))

    def row(self, text):
        """The fact with this text, or None."""
        for row in self.all("#facts .fact"):
            texts = row.find_elements(By.CSS_SELECTOR, ".fact-text")
            if texts and texts[0].text == text:
                return row
        return None

    def press_in_row(self, text, label):
        row = self.wait(f"the fact “{text}”", lambda: self.row(text))
        button = next(b for b in row.find_elements(By.CSS_SELECTOR, ".fact-actions button") if b.text == label)
        self.script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        return row

    def check_console(self):
        bad = [entry["message"] for entry in self.driver.get_log("browser")
               if entry["level"] == "SEVERE" and not harmless(entry["message"])]
        check(not bad, "the browser's console has errors:\n    " + "\n    ".join(bad))


def step_status(page):
    """The overview shows what the server says of itself."""
    page.driver.get(page.base + "/")
    if page.key:
        page.wait("the field for the key", lambda: page.find("#key").is_displayed())
        page.find("#key").send_keys(page.key, Keys.ENTER)
        page.wait("the key to be accepted", lambda: not page.find("#key").is_displayed())
        page.driver.get_log("browser")  # the refused request is what made the field appear
    page.wait("a status from the server", lambda: page.text("#version").startswith("v"))
    page.wait("the tiles", lambda: page.text("#tile-running").isdigit())
    check(len(page.all("#tiers [role=meter]")) == 5, "the overview does not show five tiers")
    check(page.script("return typeof Chart"), "Chart.js is not there")
    check(page.script("return Chart.getChart('chart-ttft') !== undefined"), "the chart of TTFT was not made")
    page.shot("overview")


def step_add(page):
    """A fact about a new user is added, and is ready after a while."""
    page.open("#/users")
    page.wait("the list of users", lambda: page.all("#user-list li") or page.find("#user-empty").is_displayed())
    page.find("#user-name").send_keys(page.user, Keys.ENTER)
    page.wait("the new user's page", lambda: page.text("#browser-title") == page.user)
    page.wait("the hint for a user without facts", lambda: "Nothing is remembered" in page.text("#facts-problem"))
    page.shot("new-user")
    page.find("#add-text").send_keys(FACT)
    page.click("#add-form button[type=submit]")
    row = page.wait("the fact in the list", lambda: page.row(FACT))
    check(page.find("#add-text").get_attribute("value") == "", "the field of the new fact was not emptied")
    page.wait("the user in the list", lambda: page.text("#user-list a[aria-current] .user") == page.user)
    page.shot("added")
    page.wait("the fact to be encoded", lambda: page.row(FACT).find_element(By.CSS_SELECTOR, ".badge").text == "ready")
    return row


def step_search(page):
    """The search finds it, by words and by meaning."""
    page.find("#search").send_keys(SUBJECT)
    page.wait("the search's result", lambda: "match" in page.text("#search-note"))
    page.wait("the fact in the result", lambda: page.row(FACT))
    check("score" in page.row(FACT).text, "a search result has no score")
    page.shot("search")


def step_edit(page):
    """Esc leaves the text alone, Ctrl+Enter saves it, and the history has both texts."""
    page.press_in_row(FACT, "Edit")
    page.wait("the field to edit", lambda: page.find("#facts form.edit textarea"))
    page.press(" never saved", Keys.ESCAPE)
    page.wait("the old text", lambda: page.row(FACT))

    page.press_in_row(FACT, "Edit")
    box = page.find("#facts form.edit textarea")
    check(page.focused() == box, "the field to edit did not take the focus")
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    page.press(EDITED)
    page.shot("edit")
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.wait("the new text", lambda: page.row(EDITED))

    page.press_in_row(EDITED, "History")
    page.wait("two editions", lambda: len(page.all("#facts .history li")) == 2)
    texts = [p.text for p in page.all("#facts .history li > p")]
    check(texts == [EDITED, FACT], f"the history is {texts}")
    page.shot("history")

    page.open(f"#/users/{page.user}")
    page.wait("the edited fact to be encoded again",
              lambda: page.row(EDITED).find_element(By.CSS_SELECTOR, ".badge").text == "ready")


def step_chat(page):
    """The answer streams in, and the memory it was given stands under it."""
    page.click("#browser-ask")
    page.wait("the chat", lambda: page.find("#question").is_displayed())
    page.wait("the user in the chat", lambda: page.find("#chat-user option:checked").text == page.user)
    check(page.find("#mode-inject").is_selected(), "inject is not the mode to begin with")
    page.find("#question").send_keys(QUESTION, Keys.ENTER)
    page.wait("the answer", lambda: page.all("#log .answer details"))
    answer = page.find("#log .answer")
    text = answer.find_element(By.CSS_SELECTOR, ".answer-text")
    check(text.text != "", "the answer is empty")
    check(text.get_attribute("aria-busy") == "false", "the answer is said to be busy still")
    memories = [m.text for m in answer.find_elements(By.CSS_SELECTOR, ".memories li")]
    check(any(EDITED in m for m in memories), f"the fact is not among the memories of the answer: {memories}")
    check(any(EDITED in m and "injected" in m for m in memories), f"the fact was not injected: {memories}")
    check(not any(FACT in m for m in memories), "the text before the edit was used")
    check("TTFT" in answer.text and " ms" in answer.text, "the answer has no TTFT")
    check(len(answer.find_elements(By.CSS_SELECTOR, ".split-bar span")) >= 2, "the answer has no timing split")
    page.shot("chat")


def step_stop(page):
    """Esc stops an answer while it is written, and the chat can go on."""
    page.find("#chat-max").clear()
    page.find("#chat-max").send_keys("1024")
    for request in ("Write a very long story about a lighthouse.", "Count from one to a thousand.", "Name all trees."):
        page.find("#question").send_keys(request, Keys.ENTER)
        answer = page.all("#log .answer")[-1]
        page.wait("the first words", lambda a=answer: a.find_element(By.CSS_SELECTOR, ".answer-text").text != "")
        page.press(Keys.ESCAPE)
        page.wait("the end of the answer", lambda: page.find("#send").is_displayed())
        if answer.find_element(By.CSS_SELECTOR, ".who").text == "Stopped":
            break  # a small model may have said all before Esc
    else:
        raise Failed("no answer was stopped")
    page.shot("stopped")


def step_mode_off(page):
    """Without memory no fact is used."""
    page.click("#chat-new")
    page.wait("an empty chat", lambda: not page.all("#log .answer"))
    page.find("#chat-max").clear()
    page.find("#chat-max").send_keys("16")
    page.click("label[for=mode-off]")
    page.find("#question").send_keys(QUESTION, Keys.ENTER)
    page.wait("the answer without memory", lambda: page.all("#log .answer .numbers"))
    check(page.text("#log .answer .who") == "Without memory", "the answer does not say that no memory was used")
    check(not page.all("#log .answer .memories"), "memories are listed under an answer without memory")
    page.open("#/overview")
    page.wait("the request among the recent ones", lambda: page.user in page.text("#recent"))
    page.shot("overview-with-requests")


def step_forget(page):
    """Forgetting asks first, Esc keeps the fact; then it is gone."""
    page.open(f"#/users/{page.user}")
    page.press_in_row(EDITED, "Forget")
    dialog = page.find("#forget-dialog")
    page.wait("the dialog", dialog.is_displayed)
    check(page.text("#forget-text") == EDITED, "the dialog shows another text")
    page.shot("forget")
    page.press(Keys.ESCAPE)
    page.wait("the dialog to close", lambda: not dialog.is_displayed())
    check(page.row(EDITED) is not None, "Esc did not keep the fact")
    check(page.focused().text == "Forget", "the focus did not go back to where it was")

    page.press(Keys.ENTER)
    page.wait("the dialog", dialog.is_displayed)
    page.click("#forget-yes")
    page.wait("the fact to disappear", lambda: page.row(EDITED) is None)
    page.shot("forgotten")

    page.find("#search").send_keys(SUBJECT)
    page.wait("the search to end", lambda: "match" in page.text("#search-note"))
    check(page.row(EDITED) is None and page.row(FACT) is None, "the search finds a forgotten fact")


def step_forget_all(page):
    """Everything of a user is forgotten when the name is typed, and not before."""
    page.open(f"#/users/{page.user}")
    for text in ("The garden gate squeaks in the rain.", "<b>Markup</b> & <img src=x> stay \"text\"."):
        page.wait("the form", lambda: page.find("#add-text").is_enabled())
        page.find("#add-text").send_keys(text, Keys.ENTER)
        page.wait(f"the fact “{text}”", lambda t=text: page.row(t))
    page.click("#forget-all")
    page.wait("the dialog", page.find("#all-dialog").is_displayed)
    check(page.focused() == page.find("#all-name"), "the field for the name did not take the focus")
    check(not page.find("#all-yes").is_enabled(), "everything can be forgotten without typing the name")
    page.press(page.user[:-1])
    check(not page.find("#all-yes").is_enabled(), "everything can be forgotten after typing another name")
    page.press(page.user[-1])
    page.shot("forget-all")
    page.press(Keys.ENTER)
    page.wait("no facts", lambda: not page.all("#facts .fact") and page.find("#facts-problem").is_displayed())
    page.wait("the user to leave the list", lambda: page.user not in [u.text for u in page.all("#user-list .user")])


def step_theme(page):
    """The theme button turns dark and light about, and the choice outlives a reload."""
    page.open("#/overview")
    background = lambda: page.script("return getComputedStyle(document.body).backgroundColor")
    light, pressed = background(), page.find("#theme").get_attribute("aria-pressed")
    page.click("#theme")
    dark = background()
    check(dark != light, "the theme button changes nothing")
    check(page.find("#theme").get_attribute("aria-pressed") != pressed, "the theme button does not say its state")
    page.driver.refresh()
    page.wait("a status from the server", lambda: page.text("#version").startswith("v"))
    check(background() == dark, "the theme was forgotten by a reload")
    for view in ("overview", "users", "chat", "engine"):
        page.open(f"#/{view}")
        time.sleep(0.5)  # for the picture's sake
        page.shot(f"dark-{view}")
    page.click("#theme")
    check(background() == light, "the theme button does not go back")


def step_keyboard(page):
    """The tabs are walked with the arrow keys, and what follows is reached with Tab."""
    page.open("#/overview")
    page.driver.refresh()  # only a new page begins at the top for Tab
    page.wait("a status from the server", lambda: page.text("#version").startswith("v"))
    page.press(Keys.TAB)
    check(page.focused().get_attribute("class") == "skip", "the first Tab does not reach the skip link")
    page.press(Keys.TAB)
    names = ["overview", "users", "chat", "engine"]
    for name in names[1:] + names[:1]:
        page.press(Keys.ARROW_RIGHT)
        check(page.focused().get_attribute("id") == f"tab-{name}", f"the arrow key did not reach the tab {name}")
        shown = [v for v in names if page.find(f"#{v}").is_displayed()]
        check(shown == [name], f"the views {shown} are shown at once")
        check(f"#/{name}" in page.driver.current_url, f"the address does not name the view {name}")
        outline = page.script("return getComputedStyle(document.activeElement).outlineStyle")
        check(outline != "none", f"the focus on the tab {name} is not visible")
    page.press(Keys.END)
    check(page.focused().get_attribute("id") == "tab-engine", "End does not reach the last tab")
    page.shot("keyboard")
    page.press(Keys.TAB)
    check(page.focused().get_attribute("id") in ("key-open", "theme"), "Tab does not leave the tabs")
    check(len(page.all("#engine-body dl")) >= 2, "the engine's view is empty")


def step_narrow(page):
    """At 400 pixels nothing is wider than the window."""
    page.size(400, 800)
    for view in ("overview", "users", "chat", "engine"):
        page.open(f"#/{view}")
        time.sleep(0.5)
        over = page.script("return document.documentElement.scrollWidth - window.innerWidth")
        check(over <= 0, f"the view {view} is {over} pixels wider than a narrow window")
        page.shot(f"narrow-{view}")
    page.size(1360, 900)


STEPS = [step_status, step_add, step_search, step_edit, step_chat, step_stop, step_mode_off, step_forget,
         step_forget_all, step_theme, step_keyboard, step_narrow]


def browser(options, *arguments, logs=("browser",)):
    """arguments: more of them for Chromium; logs: what is kept for get_log."""
    chrome = webdriver.ChromeOptions()
    chrome.binary_location = options.browser
    # --no-sandbox: tests run as root. --disable-dev-shm-usage: containers have a small /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments):
        chrome.add_argument(argument)
    chrome.set_capability("goog:loggingPrefs", dict.fromkeys(logs, "ALL"))
    return webdriver.Chrome(options=chrome, service=webdriver.ChromeService(options.driver))


def run_steps(page, steps, checks):
    """Takes the steps one after the other, each followed by all the checks, up to the first that fails. The exit code."""
    passed = 0
    for step in steps:
        begun = time.monotonic()
        try:
            step(page)
            for look in checks:
                look()
        except (Failed, WebDriverException, StopIteration) as error:
            page.shot(f"failed-{step.__name__.removeprefix('step_')}")
            why = str(error) or "no such element"
            if not isinstance(error, Failed):
                why = f"{type(error).__name__}: {why.splitlines()[0]}"
            print(f"FAILED {step.__name__}: {step.__doc__}\n  {why}\n  screenshots in {page.folder}", file=sys.stderr)
            break
        passed += 1
        print(f"ok {step.__name__.removeprefix('step_')} ({time.monotonic() - begun:.1f} s)", flush=True)
    left = len(steps) - passed
    print(f"{passed} passed, {min(left, 1)} failed, {max(left - 1, 0)} skipped")
    return 0 if left == 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base", help="such as http://127.0.0.1:8080")
    parser.add_argument("folder", type=pathlib.Path, help="for the screenshots")
    parser.add_argument("--key", default="", help="the server's API key, if it needs one")
    parser.add_argument("--user", default=f"dashboard-test-{int(time.time())}")
    parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for anything")
    parser.add_argument("--browser", default=shutil.which("chromium") or "/usr/bin/chromium")
    parser.add_argument("--driver", default=shutil.which("chromedriver") or "/usr/bin/chromedriver")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    driver = browser(options)
    try:
        page = Dashboard(driver, options)
        page.size(1360, 900)
        return run_steps(page, STEPS, [page.check_console])
    finally:
        driver.quit()


if __name__ == "__main__":
    sys.exit(main())
