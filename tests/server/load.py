"""Sixteen users at once who ask, add, search, change and forget, and are checked for each of it.

    load.py [--seconds 60] [--users 16]     starts a server of its own and prints what was done

No user may ever see another's words, no fact that was acknowledged may be lost, none that was forgotten may come back,
and the server's memory must not grow with the requests.
"""

import argparse
import collections
import random
import sys
import threading
import time

from abuse import open_files, rss
from common import PATIENCE, Server, wait_for

KINDS = ["cat", "boat", "garden", "recipe", "song", "journey", "letter", "clock"]
GROWTH_KIB = 24 << 10  # of the process's own memory, beside what the facts themselves may take
FACT_KIB = 8  # a fact's vector, words and place in the indices, in memory
TURN_KIB = 3 << 10  # of a conversation that is kept, as KV state of the default model
TURNS_KIB = 256 << 10  # what all of those may take


class User(threading.Thread):
    """One user, who knows what must be there."""

    def __init__(self, server, number, until):
        super().__init__(name=f"user-{number}")
        self.server, self.until, self.number = server, until, number
        self.chance = random.Random(number)
        self.word = f"CODEWORD{chr(65 + number)}Q"  # in each of this user's facts, in nobody else's
        self.facts = {}  # by id, what was acknowledged
        self.gone = set()
        self.counts = collections.Counter()
        self.refused = 0
        self.error = None
        self.http = server.client()

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.chance.choices([self.ask, self.add, self.search, self.change, self.forget, self.look],
                                    [3, 4, 4, 2, 2, 2])[0]()
            self.look()
        except Exception as error:  # told by the thread that waits for this one
            self.error = error
        finally:
            self.http.close()

    def call(self, method, path, **options):
        """A reply; one that is refused since too many wait is asked for again."""
        while True:
            reply = self.http.request(method, path, **options)
            if reply.status_code != 429:
                break
            self.refused += 1
            time.sleep(0.1 * self.chance.random())
        self.counts[f"{method} {path.split('?')[0].rstrip('0123456789')}"] += 1
        assert reply.status_code < 400 or reply.status_code == 404, f"{method} {path}: {reply.status_code} {reply.text}"
        for other in "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"[:32]:
            word = f"CODEWORD{other}Q"
            assert word == self.word or word not in reply.text, f"{self.name} was told of {word}"
        return reply

    def check(self, facts, whole):
        """What is listed, found or used is this user's, is as it was acknowledged, and was not forgotten."""
        for fact in facts:
            assert fact["id"] not in self.gone, f"{self.name}: {fact['id']} was forgotten and is back"
            assert self.facts.get(fact["id"]) == fact["text"], f"{self.name}: {fact} is not {self.facts.get(fact['id'])}"
        if whole:
            lost = self.facts.keys() - {fact["id"] for fact in facts}
            assert not lost, f"{self.name}: {lost} are lost"

    def new_text(self):
        return f"The {self.chance.choice(KINDS)} number {self.chance.randrange(10**6)} has the word {self.word}."

    def add(self):
        texts = [self.new_text() for _ in range(self.chance.randrange(1, 4))]
        reply = self.call("POST", "/v1/memories", json={"user": self.name, "facts": texts, "wait": self.chance.random() < 0.1})
        made = reply.json()["memories"]
        assert [fact["text"] for fact in made] == texts
        self.facts.update((fact["id"], fact["text"]) for fact in made)

    def search(self):
        reply = self.call("POST", "/v1/memories/search", json={"user": self.name, "query": f"the {self.chance.choice(KINDS)}", "k": 10})
        if reply.status_code == 404:
            assert not self.facts
            return
        found = reply.json()["memories"]
        self.check(found, False)
        assert len(found) == min(10, len(self.facts)), f"{self.name}: {len(found)} of {len(self.facts)} facts were found"

    def ask(self):
        body = {"user": self.name, "max_tokens": 8, "messages": [{"role": "user", "content": f"What of the {self.chance.choice(KINDS)}?"}],
                "inferscale": {"k": 8, "mode": self.chance.choice(["inject", "inject", "prefill", "off"]), "history": "recompute"}}
        if self.chance.random() < 0.1:
            body["inferscale"]["history"] = "inject"
            self.counts["kept conversations"] += 1
        if self.chance.random() < 0.15:  # some leave in the middle
            with self.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True, "max_tokens": 200}) as reply:
                if reply.status_code == 200:
                    next(reply.iter_raw(), None)
            self.counts["left in a stream"] += 1
            return
        self.check(self.call("POST", "/v1/chat/completions", json=body).json()["inferscale"]["memories"], False)

    def change(self):
        if self.facts:
            number, text = self.chance.choice(list(self.facts)), self.new_text()
            assert self.call("PATCH", f"/v1/memories/{number}", json={"text": text}).json()["text"] == text
            self.facts[number] = text

    def forget(self):
        if not self.facts:
            return
        if self.chance.random() < 0.05:
            assert self.call("DELETE", f"/v1/memories?user={self.name}").json() == {"deleted": len(self.facts)}
            self.gone |= self.facts.keys()
            self.facts.clear()
            return
        number = self.chance.choice(list(self.facts))
        assert self.call("DELETE", f"/v1/memories/{number}").json() == {"deleted": 1}
        del self.facts[number]
        self.gone.add(number)
        assert self.call("GET", f"/v1/memories/{number}").status_code == 404

    def look(self):
        self.check(self.call("GET", f"/v1/memories?user={self.name}&limit=1000").json()["memories"], True)


def kept_kib(server):
    """Of KV state that is kept within bounds of its own: chunks, and primers for the next fact to encode."""
    status = server.status()
    return (status["stats"]["host_bytes"] + status["engine"]["prefix_bytes"]) >> 10


def run_load(server, seconds, users=16, tell=print):
    """Raises what a user found to be wrong."""
    for i in range(4):  # whatever is made once
        server.ask("Hello?", user=f"warm-{i}")
    server.add("warm", "It is warm.", wait=True)
    before, files, kept = rss(server), open_files(server), kept_kib(server)
    until = time.monotonic() + seconds
    everyone = [User(server, i, until) for i in range(users)]
    for user in everyone:
        user.start()
    while any(user.is_alive() for user in everyone):
        time.sleep(0.5)
    for user in everyone:
        user.join(PATIENCE)
        if user.error is not None:
            raise user.error
    wait_for(lambda: server.in_work() == (0, 0), "rest")
    wait_for(lambda: open_files(server) <= files + 2, "the end of all connections")
    facts = sum(len(user.facts) for user in everyone)
    for user in everyone:  # once more, when all is quiet
        user.http = server.client()
        user.look()
        user.http.close()
    wait_for(lambda: server.get("/v1/encode").json()["pending"] == 0, "the end of the encoding")
    after, kept = rss(server), kept_kib(server) - kept
    total = collections.Counter()
    for user in everyone:
        total += user.counts
    for what, n in sorted(total.items()):
        tell(f"{what:32} {n}")
    tell(f"{sum(total.values())} requests in {seconds} s, {sum(user.refused for user in everyone)} were put off; {facts} facts at the end, "
         f"{sum(len(user.gone) for user in everyone)} forgotten")
    allowed = kept + FACT_KIB * facts + min(TURNS_KIB, TURN_KIB * total["kept conversations"]) + GROWTH_KIB
    tell(f"memory: {before} KiB before, {after} at the end, where {before + allowed} are allowed for chunks, primers, facts and conversations")
    assert after <= before + allowed, "it grows with the requests"


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--users", type=int, default=16)
    chosen = options.parse_args()
    with Server("--memory", "64M", slots=4) as server:
        run_load(server, chosen.seconds, chosen.users)
    return 0


if __name__ == "__main__":
    sys.exit(main())
