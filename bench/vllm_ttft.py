#!/usr/bin/env python3
"""Time to the first token through vLLM, over k: what `inferscale bench ttft` measures on llama.cpp, in the same JSON."""
import argparse
import collections
import json
import os
import pathlib
import sys
import tempfile
import time

from vllm_step import SAMPLE, about, begin, end

EXAMPLES = """\
A vLLM server is started, `inferscale serve --engine vllm` in front of it, and each question asked in several ways by turns;
vLLM's prefix cache is emptied before each of them. Times are a client's over HTTP.

  scripts/setup.sh --vllm && make build/libinferscale-connector.so build/inferscale
  bench/vllm_ttft.py -k 10 -k 50 --limit 2 --repeat 1
  bench/vllm_ttft.py --data locomo10.json --out build/evaluation
  inferscale bench locomo --data locomo10.json --full --out build/evaluation     its report then shows both engines
"""
WAYS = ("prefill", "prefix", "inject", "resident")
CONTEXT = 8192  # tokens at most, as llama.cpp has of the same model
SPARE = 64  # of them, that the history leaves free


class Progress:
    """One line that is written anew on a terminal; elsewhere, where lines stay, one every few seconds."""

    def __init__(self, doing, what):
        self.doing, self.what = doing, what
        self.begun = self.shown = time.monotonic()
        self.is_terminal = sys.stderr.isatty()

    def show(self, done, total):
        now = time.monotonic()
        if not done or now - self.shown < (0.1 if self.is_terminal else 5):
            return
        self.shown = now
        minutes, seconds = divmod(round((now - self.begun) / done * (total - done)), 60)
        left = f"{minutes} min {seconds} s left".removeprefix("0 min ")
        text = f"{self.doing}: {100 * done // total} %, {done} of {total} {self.what}, {left}"
        print(f"\r\033[K{text}" if self.is_terminal else text, end="" if self.is_terminal else "\n", file=sys.stderr, flush=True)

    def end(self):
        if self.is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ------------------------------------------------------------ the data

def locomo_history(conversation):
    numbers = sorted(int(key[len("session_"):]) for key in conversation if key[len("session_"):].isdigit())
    turns = [turn for number in numbers for turn in conversation[f"session_{number}"]]
    images = [f" [image: {turn['blip_caption']}]" if "blip_caption" in turn else "" for turn in turns]
    return "".join(f"{turn['speaker']}: {turn['text']}{image}\n" for turn, image in zip(turns, images))


def read_data(path, limit):
    """(user, question), at most so many and at even distances as bench_questions.c takes them; by user what is imported; by user all that was said."""
    text = path.read_text()
    if text.lstrip().startswith("["):
        samples = json.loads(text)
        memories = {s["sample_id"]: json.dumps([s]) for s in samples}
        histories = {s["sample_id"]: locomo_history(s["conversation"]) for s in samples}
        questions = [(s["sample_id"], q["question"]) for s in samples for q in s["qa"] if q.get("category") != 5 and q.get("answer", "") != ""]
    else:
        turns = [x for x in map(json.loads, text.splitlines()) if x["type"] == "turn"]
        memories = {"default": text}
        histories = {"default": "".join(f"{x['speaker']}: {x['text']}\n" for x in turns)}
        questions = [("default", q["question"]) for q in json.loads((path.parent / "questions.json").read_text())]
    n = min(limit or len(questions), len(questions))
    return [questions[i * len(questions) // n] for i in range(n)], memories, histories


# ------------------------------------------------------------ one request

def first_token(http, url, body):
    """The milliseconds until an answer's first token is here, and the stream's last event."""
    begun = time.perf_counter()
    took = last = None
    with http.post(url, json={**body, "max_tokens": 1, "temperature": 0, "stream": True}, stream=True, timeout=900) as reply:
        for line in reply.iter_lines():
            if not line.startswith(b"data: {"):
                continue
            last = json.loads(line[len("data: "):])
            choices = last.get("choices", [])
            if took is None and any(c.get("text") or c.get("delta", {}).get("content") or c.get("finish_reason") for c in choices):
                took = (time.perf_counter() - begun) * 1e3
    if took is None:
        sys.exit(f"no answer from {url}: {last or reply.status_code}")
    return took, last


class Engine:
    """vLLM, and the gateway in front of it."""

    def __init__(self, server, gateway):
        self.server, self.gateway = server, gateway
        self.about = gateway.http.get(gateway.url + "/v1/status").json()

    def remember(self, memories):
        for i, (user, records) in enumerate(memories.items()):
            progress = Progress(f"encoding, conversation {i + 1} of {len(memories)}", "facts")
            with self.gateway.http.post(self.gateway.url + "/v1/memories/import", params={"user": user}, data=records.encode(),
                                        headers={"Content-Type": "application/json"}, stream=True, timeout=900) as reply:
                for line in map(json.loads, reply.iter_lines()):
                    if "error" in line:
                        sys.exit(f"cannot import {user}: {line['error']['message']}")
                    if "total" in line:
                        progress.show(line["done"], line["total"])
            progress.end()

    def ask(self, user, question, k, mode):
        body = {"user": user, "messages": [{"role": "user", "content": question}], "inferscale": {"k": k, "mode": mode}}
        return first_token(self.gateway.http, self.gateway.url + "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})

    def empty_cache(self):
        reply = self.server.http.post(self.server.url + "/reset_prefix_cache").json()
        if not reply["success"]:
            sys.exit("vLLM did not empty its prefix cache")

    def turn(self, user, question, k, way):
        """Asks with a cache that has what this way needs and nothing else; what was measured. The server says how long it searched."""
        mode = "prefill" if way in ("prefill", "prefix") else "inject"
        self.empty_cache()
        if way == "prefix":
            self.ask(user, question, 0, mode)  # has the header in common, and no fact
        if way == "resident":
            self.ask(user, question, k, mode)
        before = self.injected()
        took, last = self.ask(user, question, k, mode)
        tokens, seconds = (a - b for a, b in zip(self.injected(), before))
        usage = last["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        expected = {"prefill": cached == 0, "prefix": cached <= self.about["header_tokens"], "inject": 0 < tokens == cached,
                    "resident": tokens == 0 < cached}
        if not expected[way]:
            sys.exit(f"{way}, k={k}: {cached} of {usage['prompt_tokens']} tokens were in a cache, {tokens:.0f} of them out of chunks, which is another way")
        search = last["inferscale"]["timing"]["embed_ms"] + last["inferscale"]["timing"]["rank_ms"]
        found = {f"{way}_query": took, f"{way}_ttft": took - search, "retrieval": search}
        if way == "inject":
            found.update(inject=seconds * 1e3, memory_tokens=tokens, tail_tokens=usage["prompt_tokens"] - cached)
        return found

    def injected(self):
        """Tokens and seconds, by the connector's own count."""
        return [self.server.metric(f"inferscale_{name}_total") for name in ("injected_tokens", "inject_seconds")]

    def read(self, history, question):
        """The question behind as much of the history as the context has room for."""
        tokens, tail = (self.server.http.post(self.server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
                        for text in (history, question))
        prompt = tokens[-(self.about["engine"]["context"] - len(tail) - SPARE):] + tail
        self.empty_cache()
        took, _ = first_token(self.server.http, self.server.url + "/v1/completions", {"model": "model", "prompt": prompt})
        return {"conversation_tokens": len(tokens), "prompt_tokens": len(prompt), "ttft_ms": took}


# ------------------------------------------------------------ the figures

def copy_ms(size):
    """A memcpy between touched buffers."""
    import numpy

    source, target = numpy.full(size, 1, numpy.uint8), numpy.full(size, 2, numpy.uint8)
    begun = time.perf_counter()
    numpy.copyto(target, source)
    return (time.perf_counter() - begun) * 1e3


def token_bytes(config):
    """Of a token's K and V, in 16 bits."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width


def row_of(k, seen, bytes_a_token):
    """The keys and the formulas of bench_ttft.c; the connector fetches and injects in one call."""
    import numpy

    p50 = {name: float(numpy.median(values)) for name, values in seen.items()}
    size, inject = p50["memory_tokens"] * bytes_a_token, p50["inject"]
    copy = float(numpy.median([copy_ms(int(size)) for _ in range(10)]))
    row = {"k": k, "memory_tokens": p50["memory_tokens"], "tail_tokens": p50["tail_tokens"]}
    for what in ("ttft", "query"):
        for way in WAYS:
            row[f"{way}_{what}_ms"] = p50[f"{way}_{what}"]
            row[f"{way}_{what}_p95_ms"] = float(numpy.percentile(seen[f"{way}_{what}"], 95))
    return {**row, "speedup": p50["prefill_ttft"] / p50["inject_ttft"], "overhead": p50["inject_ttft"] / p50["resident_ttft"] - 1,
            "retrieval_ms": p50["retrieval"], "fetch_ms": None, "inject_ms": inject, "inject_bytes": size,
            "inject_gb_s": size / inject * 1e-6, "memcpy_gb_s": size / copy * 1e-6, "inject_over_memcpy": inject / copy}


def measure(engine, questions, ks, repeat, bytes_a_token):
    rows = []
    progress = Progress("measuring", "turns")
    for way in WAYS:
        engine.turn(*questions[0], ks[-1], way)  # warms up
    n = len(questions) * repeat
    for at, k in enumerate(ks):
        seen = collections.defaultdict(list)
        for i in range(n):
            for way in WAYS:
                for name, value in engine.turn(*questions[i // repeat], k, way).items():
                    seen[name].append(value)
            progress.show(at * n + i + 1, len(ks) * n)
        rows.append(row_of(k, seen, bytes_a_token))
    progress.end()
    return rows


def run(chosen):
    from common import MODEL, Server
    from gateway import Gateway

    questions, memories, histories = read_data(chosen.data, chosen.limit)
    model = pathlib.Path(MODEL)
    config = json.loads((model / "config.json").read_text())
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # in which its prefix cache can be emptied
    length = min(CONTEXT, config["max_position_embeddings"])
    users = {user for user, _ in questions}
    print("starting vLLM", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as store, \
            Server("--enable-prompt-tokens-details", "--max-model-len", length, folder=f"{store}/chunks") as server, Gateway([server.url], store) as gateway:
        engine = Engine(server, gateway)
        engine.remember({user: records for user, records in memories.items() if user in users})
        rows = measure(engine, questions, chosen.k, chosen.repeat, token_bytes(config))
        user, question = questions[0]
        return {"version": engine.about["version"], "fingerprint": engine.about["engine"]["fingerprint"], **about(server), "ttft": rows, "first_inject_ttft_ms": None, "history": engine.read(histories[user], question)}


def main():
    options = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-k", type=int, action="append", help="facts in the prompt; may be repeated (5, 10, 20, 50)")
    options.add_argument("--data", type=pathlib.Path, default=SAMPLE, help="LoCoMo's file, or JSON Lines with questions.json beside them (the bundled sample)")
    options.add_argument("--limit", type=int, default=10, help="questions at most, 0: all (10)")
    options.add_argument("--repeat", type=int, default=3, help="times that each is asked each way (3)")
    options.add_argument("--out", type=pathlib.Path, help="the folder of `inferscale bench locomo`, which puts the result into its report (without: to stdout)")
    chosen = options.parse_args()
    chosen.k = sorted(set(chosen.k or [5, 10, 20, 50]))
    begin()
    end("ttft", [*(word for k in chosen.k for word in ("-k", k)), "--limit", chosen.limit, "--repeat", chosen.repeat], chosen, run)


if __name__ == "__main__":
    main()
