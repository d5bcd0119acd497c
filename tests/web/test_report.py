#!/usr/bin/env python3
"""Opens a report of `inferscale bench locomo` in a real browser and holds it against the figures inside of it.

    INFERSCALE_REPORT=build/evaluation/report.html test_report.py [--folder FOLDER] [--browser PATH] [--driver PATH]

Each figure in a table says by a JSON Pointer where it stands in the data; what is shown is read back into a number and
compared. Plots are measured: their marks must lie where the data says. Then windows from 360 to 1600 pixels, the dark
scheme, print, and a copy of the page with strange data in it. FOLDER (default: $SCREENSHOTS, or build/screenshots) gets
screenshots. Exits with 1 and says which step failed when one does. Needs selenium, and Debian's chromium and
chromium-driver.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

from selenium.webdriver.common.by import By

from dashboard import browser, check, run_steps

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = (360, 520, 1000, 1400, 1600)
DASH = "–"

# What the tables must have of each row of a step's list, so that none is left out by mistake.
FIGURES = {
    "ttft": ["k", "memory_tokens", "speedup", "overhead", "retrieval_ms", "fetch_ms", "inject_ms", "inject_bytes",
             "inject_gb_s", "memcpy_gb_s", "inject_over_memcpy",
             *(f"{way}_{what}{p95}_ms" for way in ("prefill", "prefix", "inject", "resident")
               for what in ("ttft", "query") for p95 in ("", "_p95"))],
    "throughput": ["users", "requests_per_s", "tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms",
                   "end_to_end_p50_ms", "inter_token_p50_ms", "errors"],
    "recall": ["turns_found", "all_found"],
    "fidelity": ["recipe", "kl_by_question", "kl_low", "kl_high", "kl", "top1", "nll_full", "nll_inject"],
    "answers": ["questions", "f1/mean", "exact", "f1_with_evidence", "with_evidence", "f1_without_evidence",
                "without_evidence"],
    "encode": ["recipe", "facts", "tokens", "bytes", "ms", "tokens_per_s", "cost_against_first"],
}
# Steps whose list is not named as the step is.
LISTS = {"ttft, vLLM": "ttft", "throughput, vLLM": "throughput", "adversarial": "answers"}
FIGURES.update({step: FIGURES[name] for step, name in LISTS.items()})

UNITS = {"": 1, "%": 0.01, "×": 1, "ms": 1, "s": 1000, "min": 60000, "h": 3600000, "bytes": 1, "KiB": 2**10,
         "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def resolve(data, pointer):
    """What stands at a JSON Pointer (RFC 6901)."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        data = data[int(name)] if isinstance(data, list) else data.get(name) if data is not None else None
    return data


def read(text):
    """A number as people read it: (value, half of its last digit). Times are in ms."""
    value = slack = 0
    for number, unit in re.findall(r"([+−]?[\d,]+(?:\.\d+)?(?:e-?\d+)?)\s*([^\d\s+−]*)", text):
        digits = number.replace(",", "").replace("−", "-")
        value += float(digits) * UNITS[unit]
        decimals = len(digits.partition("e")[0].partition(".")[2]) - int(digits.partition("e")[2] or 0)
        slack = 0.5000001 * 10**-decimals * UNITS[unit]
    return value, slack


def same(text, value, pointer):
    """Whether this text is how a value of the data is shown."""
    if value is None:
        return text == DASH
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return text == str(value) or (isinstance(value, bool) and text == str(value).lower())
    shown, slack = read(text)
    scale = 1
    if pointer.endswith("/seconds"):
        scale = 1000
    elif "_against_text/" in pointer:  # in points
        scale = 100
    return abs(shown - value * scale) <= max(slack, abs(value) * 1e-5)


def luminance(color):
    parts = [int(x) / 255 for x in re.findall(r"\d+", color)[:3]]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055)**2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Of two colours, as WCAG 2 defines it."""
    a, b = sorted((luminance(one), luminance(other)))
    return (b + 0.05) / (a + 0.05)


class Report:
    """The page, and the data that it says it shows."""

    def __init__(self, driver, path, folder):
        self.driver = driver
        self.path = path
        self.folder = folder
        self.data = None
        self.shots = 0

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def open(self, path=None):
        self.driver.get((path or self.path).as_uri())
        self.data = json.loads(self.script("return document.getElementById('data').textContent"))

    def size(self, width, height=900):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        time.sleep(0.3)  # plots are drawn anew when the window has changed

    def media(self, media="", scheme="light"):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def shot(self, name):
        self.shots += 1
        self.driver.save_screenshot(str(self.folder / f"report-{self.shots:02d}-{name}.png"))

    def steps(self):
        return list(enumerate(self.data["steps"]))

    def rows(self, name):
        """The rows of a step's list, and where the list stands."""
        for i, step in self.steps():
            key = LISTS.get(name, name)
            if step["name"] == name and isinstance((step["result"] or {}).get(key), list):
                return step["result"][key], f"/steps/{i}/result/{key}"
        return [], ""

    def marks(self, step, figure, series=""):
        """Places and names of the marks in a step's plot, as they were drawn; what is beyond the scale has no place."""
        return self.script("""
            const plots = document.querySelectorAll(`section[data-step="${arguments[0]}"] .plot`);
            return [...plots[arguments[1]].querySelectorAll(`${arguments[2]} path.mark[transform]`)].map((mark) => {
              const [, x, y] = /translate\\((\\S+) (\\S+)\\)/.exec(mark.getAttribute("transform"));
              return {x: Number(x), y: Number(y), title: mark.textContent};
            })""", step, figure, series)

    def check_console(self):
        bad = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        check(not bad, "the browser's console has errors:\n    " + "\n    ".join(bad))

    def check_network(self):
        """file:, for the page itself, and what has no network in it."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            url = message["params"]["request"]["url"]
            own = url.startswith("file:") and url.split("#")[0].endswith(".html")
            check(own or url.startswith(("data:", "blob:")), f"the page asked for {url}")

    def check_figures(self):
        """Every figure that is shown is the data's. Returns the pointers that are shown."""
        shown = self.script("return [...document.querySelectorAll('[data-path]')]"
                            ".map((node) => [node.dataset.path, node.textContent])")
        for pointer, text in shown:
            value = resolve(self.data, pointer)
            check(same(text, value, pointer), f"{pointer} is {value!r}, and the page shows {text!r}")
        return {pointer for pointer, _ in shown}

    def check_text(self):
        for word in ("NaN", "undefined", "Infinity", "[object", "null"):
            text = self.script("return document.body.innerText")
            check(word not in text, f"the page shows {word!r}")

    def check_plots(self):
        """Nonzero in size, finite in all numbers, letters inside of the picture."""
        plots = self.script("""
            return [...document.querySelectorAll(".plot")].map((plot) => {
              const svg = plot.querySelector("svg"), box = svg && svg.getBoundingClientRect();
              return svg && {
                name: svg.getAttribute("aria-label"), role: svg.getAttribute("role"),
                width: box.width, height: box.height, bars: svg.querySelectorAll("rect, .mark").length,
                attributes: [...svg.querySelectorAll("*"), svg].flatMap((node) =>
                  [...node.attributes].map((one) => `${one.name}="${one.value}"`)),
                cut: [...svg.querySelectorAll("text")].filter((text) => {
                  const b = text.getBoundingClientRect();
                  return b.width > 0 && (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1
                    || b.bottom > box.bottom + 1);
                }).map((text) => text.textContent),
              };
            })""")
        for plot in plots:
            check(plot, "a plot was not drawn")
            name = plot["name"]
            check(plot["role"] == "img" and name, "a plot has no name for those who do not see it")
            check(plot["width"] > 100 and plot["height"] > 20, f"{name} is {plot['width']} by {plot['height']}")
            bad = [a for a in plot["attributes"] if re.search(r"NaN|Infinity|undefined|null", a)]
            check(not bad, f"{name} has {bad[:3]}")
            check(not plot["cut"], f"{name} cuts off {plot['cut']}")
        return plots

    def check_width(self):
        over = self.script("return document.documentElement.scrollWidth - window.innerWidth")
        check(over <= 0, f"the page is {over} pixels wider than its window")


def step_open(page):
    """The page opens, says what it is about, and asks for nothing."""
    page.size(1400)
    page.media()
    page.open()
    check(page.all("h1"), "the page has no title")
    check(page.data["steps"], "the report has no steps")
    head = page.script("return document.getElementById('about').innerText")
    first = page.data["steps"][0]["result"]
    for what in (first["model"], first["fingerprint"], first["machine"]["cpu"], first["llama_cpp"], first["version"]):
        check(what in head, f"the head does not say {what!r}")
    page.check_text()
    page.shot("top")


def step_sections(page):
    """Every step has a section with its command, and the contents lead to it."""
    links = page.script("return [...document.querySelectorAll('#contents a')].map((a) => a.getAttribute('href'))")
    for link in links:
        check(page.all(link), f"the contents lead to {link}, which is not there")
    sections = page.script("return [...document.querySelectorAll('section[data-step]')].map((section) => ({"
                           "name: section.dataset.step, id: section.id,"
                           "tables: section.querySelectorAll('table').length,"
                           "command: section.querySelector('.made code').textContent, text: section.textContent}))")
    check(len(sections) == len(page.data["steps"]), "there are not as many sections as steps")
    for section, (_, step) in zip(sections, page.steps()):
        check(section["name"] == step["name"], f"step {step['name']} is out of its order")
        check(section["command"] == step["command"], f"the command of {step['name']} is {section['command']!r}")
        lists = [v for v in (step["result"] or {}).values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        check(section["tables"] > 0 or not lists, f"the section of {step['name']} has no table")
        check(f"#{section['id']}" in links, f"the contents do not lead to {step['name']}")
        check(step["name"].split(",")[0] not in ("ttft", "throughput") or page.all(f".tile[href='#{section['id']}']"),
              f"no tile has a figure of {step['name']}")
        engine = (step["result"] or {}).get("engine")
        check(not engine or f"on {engine['name']} {engine['version']}" in section["text"],
              f"{step['name']} does not name its engine")


def step_figures(page):
    """The tables hold the data's figures, all of them."""
    shown = page.check_figures()
    for name, keys in FIGURES.items():
        rows, base = page.rows(name)
        for i, row in enumerate(rows):
            for key in keys:
                value = resolve(row, f"/{key}")
                single = key in ("kl_low", "kl_high") and row["questions"] < 2  # has no interval
                check(value is None or single or f"{base}/{i}/{key}" in shown, f"no table has {base}/{i}/{key}")
    rows, base = page.rows("fidelity")
    for i, row in enumerate(rows):
        for j in range(len(row.get("by_place_of_evidence", []))):
            at = f"{base}/{i}/by_place_of_evidence/{j}/kl_by_question"
            check(at in shown, f"no table has {at}")
    for name in ("answers", "adversarial"):
        rows, base = page.rows(name)
        for i, row in enumerate(rows):
            keys = [] if row["mode"] == "text" else ["f1_against_text/mean"]
            keys += [] if len(row["by_category"]) < 2 else [f"by_category/{c}/f1/mean" for c in row["by_category"]]
            for key in keys:
                check(f"{base}/{i}/{key}" in shown, f"no table has {base}/{i}/{key}")
    if page.rows("ttft")[0]:
        check("/paper/ttft/text_ms/0" in shown, "the paper's times are missing")


def step_plots(page):
    """Plots are drawn, and their marks lie where the data says."""
    plots = page.check_plots()
    check(plots, "there are no plots")
    check(len({plot["name"] for plot in plots}) == len(plots), "two plots have one name")

    for name in ("ttft", "ttft, vLLM"):
        rows, _ = page.rows(name)
        for key, series in (("prefill", ".s-text"), ("inject", ".s-inject")):
            rows_of = [row for row in rows if row.get(f"{key}_ttft_ms")]
            marks = page.marks(name, 0, series) if rows else []
            check(len(marks) == len(rows_of), f"the plot of {name} has {len(marks)} marks for {key}")
            places = [(math.log(row[f"{key}_ttft_ms"]), mark["y"]) for row, mark in zip(rows_of, marks)]
            check_straight(places, f"{name}: the marks of {key}")
            check_straight([(row["k"], mark["x"]) for row, mark in zip(rows_of, marks)], f"{name}: {key} over k")

    rows, _ = page.rows("fidelity")
    marks = page.marks("fidelity", 0) if rows else []
    check(len(marks) == len(rows), "the plot of KL does not have all rows")
    check_straight([(row["kl_by_question"], mark["x"]) for row, mark in zip(rows, marks)], "the marks of KL")

    for name in ("answers", "adversarial"):
        rows = [row for row in page.rows(name)[0] if row["mode"] == "injected"]
        marks = [mark for mark in page.marks(name, 0) if not mark["title"].startswith("no memory")] if rows else []
        check(len(marks) == len(rows), f"the plot of {name} does not have all rows")
        places = [(row["f1_against_text"]["mean"], mark["x"]) for row, mark in zip(rows, marks)]
        zero = page.script("const line = document.querySelector(`section[data-step='${arguments[0]}'] .zero`);"
                           "return line && Number(line.getAttribute('x1'))", name) if rows else None
        check(not rows or zero is not None, f"the plot of {name} has no line at 0")
        check_straight([*places, (0, zero)] if rows else [], f"the marks of {name}")


def check_straight(places, what):
    """Places are on one straight line over their values, within a pixel."""
    if len(places) < 3:
        return
    (v0, p0), (v1, p1) = min(places), max(places)
    if v0 == v1:
        return
    for value, place in places:
        wanted = p0 + (value - v0) / (v1 - v0) * (p1 - p0)
        check(abs(wanted - place) <= 1, f"{what}: {value} lies at {place}, not at {wanted}")


def step_tables(page):
    """Tables have captions, and their heads say what they are heads of."""
    bad = page.script("""
        return [...document.querySelectorAll("table")].flatMap((table) => {
          const caption = table.querySelector("caption"), wrong = [];
          if (!caption || !caption.textContent.trim()) wrong.push("a table without a caption");
          for (const th of table.querySelectorAll("th"))
            if (!["col", "row", "colgroup"].includes(th.scope)) wrong.push(`${caption.textContent}: ${th.textContent}`);
          if (!table.closest("[role=region][tabindex='0'][aria-label]"))
            wrong.push(`${caption.textContent}: cannot be scrolled with keys`);
          const widths = [...table.rows].slice(table.tHead.rows.length).map((row) => row.cells.length);
          const columns = [...table.tHead.rows[0].cells].reduce((sum, cell) => sum + cell.colSpan, 0);
          if (widths.some((width) => width !== columns)) wrong.push(`${caption.textContent}: ${widths} in ${columns}`);
          return wrong;
        })""")
    check(not bad, f"tables are not as they should be: {bad}")
    levels = [int(h.tag_name[1]) for h in page.all("h1, h2, h3")]
    check(all(b - a <= 1 for a, b in zip(levels, levels[1:])), f"the levels of the headings jump: {levels}")


def step_widths(page):
    """From a telephone to a wide screen nothing is wider than the window, and no plot cuts its letters off."""
    for width in WIDTHS:
        page.size(width)
        page.check_width()
        page.check_plots()
        page.shot(f"{width}")


def step_colors(page):
    """Both schemes, with letters and lines that can be told from their ground."""
    page.size(1400)
    grounds = []
    for scheme in ("light", "dark"):
        page.media(scheme=scheme)
        colors = page.script("""
            const style = (selector) => getComputedStyle(document.querySelector(selector));
            const body = style("body"), ground = style(".card").backgroundColor, out = [];
            out.push(["text", body.color, body.backgroundColor, 4.5]);
            out.push(["notes", style(".note").color, body.backgroundColor, 4.5]);
            out.push(["the contents", style("#contents a").color, body.backgroundColor, 4.5]);
            out.push(["captions", style("figcaption span").color, ground, 4.5]);
            out.push(["letters of plots", style(".plot text").fill, ground, 4.5]);
            for (const mark of document.querySelectorAll(".card .plot .mark:not(.hollow), .card .plot .bar"))
              out.push([mark.parentNode.getAttribute("class"), getComputedStyle(mark).fill, ground, 3]);
            return out""")
        for what, color, ground, least in colors:
            ratio = contrast(color, ground)
            check(ratio >= least, f"{scheme}: {what} have a contrast of {ratio:.2f}, {color} on {ground}")
        grounds.append(luminance(colors[0][2]))
        page.shot(scheme)
    check(grounds[0] > 0.7 and grounds[1] < 0.1, "the page does not follow the scheme that is asked for")
    page.media()


def step_print(page):
    """On paper it is light, its plots have the paper's width, and the window's again afterwards."""
    page.media(scheme="dark")
    before = page.script("return [...document.querySelectorAll('.plot svg')].map((svg) => svg.getAttribute('width'))")
    page.script("window.printed = []; addEventListener('beforeprint', () => { printed = "
                "[...document.querySelectorAll('.plot svg')].map((svg) => Number(svg.getAttribute('width'))); })")
    page.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    widths = page.script("return printed")
    check(widths and max(widths) <= 700, f"plots are {widths} wide on paper")
    after = page.script("return [...document.querySelectorAll('.plot svg')].map((svg) => svg.getAttribute('width'))")
    check(before == after, "plots keep the paper's width")
    page.media("print", "dark")
    page.size(680)
    page.check_width()
    ink, ground = page.script("const style = getComputedStyle(document.body);"
                              "return [style.color, style.backgroundColor]")
    check(luminance(ground) > 0.9 and contrast(ink, ground) > 10, f"paper is not light: {ink} on {ground}")
    page.shot("print")
    page.media()
    page.size(1400)


def step_strange(page):
    """Texts that look like markup stay text, an unknown step is shown as it is, and what is not known is a dash."""
    source = page.path.read_text(encoding="utf-8")
    data = json.loads(json.dumps(page.data))
    evil = "<img src=x onerror='document.title=\"broken\"'></script>"
    data["steps"][0]["result"]["model"] = evil
    data["steps"][0]["command"] = f"inferscale bench {evil}"
    data["steps"] += [
        {"name": "some-thing", "command": "inferscale bench some-thing", "seconds": 3.5,
         "result": {"other": [1], "list": [{"a/b": 1.5, "text": evil, "in": {"deep~": None, "er": True}},
                                           {"late": 7}]}},
        {"name": "nothing", "command": "inferscale bench nothing", "seconds": 4000, "result": None}]

    def without_numbers(value, names=""):
        """Every figure of a result that may be null there is null."""
        if isinstance(value, dict):
            return {k: without_numbers(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [without_numbers(v) for v in value]
        return None if isinstance(value, float) else value

    for name, strange in (("evil", data), ("null", {**data, "steps": without_numbers(data["steps"])}),
                          ("empty", {**data, "steps": []})):
        text = json.dumps(strange).replace("<", "\\u003c")
        begin = source.index('id="data">') + len('id="data">')
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{name}.html"
            path.write_text(source[:begin] + text + source[source.index("</script>", begin):], encoding="utf-8")
            page.open(path)
            time.sleep(0.3)
            page.check_figures()
            page.check_text()
            page.check_plots()
            page.check_console()
            page.check_width()
            check(not page.all("img"), "a text became markup")
            check(page.driver.title != "broken", "a text became a script")
            check(len(page.all("section[data-step]")) == len(strange["steps"]), f"{name}: a section is missing")
            if strange["steps"]:
                rows = page.script("return [...document.querySelectorAll('[data-step=some-thing] tbody tr')]"
                                   ".map((row) => [...row.cells].map((cell) => cell.textContent))")
                wanted = [["1.5" if name == "evil" else DASH, evil, DASH, "true", DASH], [DASH] * 4 + ["7"]]
                check(rows == wanted, f"the unknown step is shown as {rows}")
    page.open()


STEPS = [step_open, step_sections, step_figures, step_plots, step_tables, step_widths, step_colors, step_print,
         step_strange]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=pathlib.Path, help="for the screenshots",
                        default=os.environ.get("SCREENSHOTS") or ROOT / "build" / "screenshots")
    parser.add_argument("--browser", default=shutil.which("chromium") or "/usr/bin/chromium")
    parser.add_argument("--driver", default=shutil.which("chromedriver") or "/usr/bin/chromedriver")
    options = parser.parse_args()
    if not os.environ.get("INFERSCALE_REPORT"):
        parser.error("INFERSCALE_REPORT must be the path of a report.html")
    options.folder.mkdir(parents=True, exist_ok=True)

    driver = browser(options, "--hide-scrollbars", logs=("browser", "performance"))
    try:
        page = Report(driver, pathlib.Path(os.environ["INFERSCALE_REPORT"]).resolve(), options.folder)
        return run_steps(page, STEPS, [page.check_console, page.check_network])
    finally:
        driver.quit()


if __name__ == "__main__":
    sys.exit(main())
