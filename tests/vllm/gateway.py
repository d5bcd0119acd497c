"""inferscale serve in front of vLLM, and a proxy that can spoil what passes through it."""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import openai
import requests

from common import PATIENCE, ROOT, free_port

BIN = pathlib.Path(os.environ.get("INFERSCALE_BIN", ROOT / "build/inferscale"))


class Gateway:
    """The program with a store; its chunks lie where the vLLM servers were told."""

    def __init__(self, upstreams, store, *options, key=None):
        self.store = pathlib.Path(store)
        self.log = open(self.store / "gateway.log", "a+", encoding="utf-8")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        env = {name: value for name, value in os.environ.items() if not name.startswith("INFERSCALE_") or name == "INFERSCALE_CACHE"}
        if key:
            env["INFERSCALE_UPSTREAM_KEY"] = key
        words = [BIN, "serve", "--engine", "vllm", "--upstream", ",".join(upstreams), "--store", self.store, "--port", port, *options]
        self.process = subprocess.Popen([str(w) for w in words], env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.http = requests.Session()

    def __enter__(self):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            try:
                self.http.get(self.url + "/healthz", timeout=5).raise_for_status()
                return self
            except requests.ConnectionError:
                time.sleep(0.1)
        text = self.output()
        self.__exit__()
        raise AssertionError("the gateway did not start:\n" + text)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert code in (0, 1), f"the gateway ended with {code}:\n{self.output()}"

    def output(self):
        self.log.flush()
        return (self.store / "gateway.log").read_text()

    def client(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def add(self, user, texts, http=None):
        """Facts that are ready when this returns; their ids."""
        facts = [{"text": text} if isinstance(text, str) else text for text in texts]
        reply = (http or self.http).post(self.url + "/v1/memories", json={"user": user, "facts": facts, "wait": True})
        assert reply.status_code == 201, reply.text
        assert all(fact["state"] == "ready" for fact in reply.json()["memories"]), reply.text
        return [fact["id"] for fact in reply.json()["memories"]]

    def post(self, question, user=None, k=50, mode="inject", http=None, **more):
        body = {"messages": question if isinstance(question, list) else [{"role": "user", "content": question}], "temperature": 0,
                "inferscale": {"k": k, "mode": mode}, "max_tokens": 16, **more}
        if user:
            body["user"] = user
        return (http or self.http).post(self.url + "/v1/chat/completions", json=body, timeout=PATIENCE)

    def ask(self, question, user=None, **more):
        reply = self.post(question, user, **more)
        assert reply.status_code == 200, reply.text
        return Reply(reply.json())

    def upstreams(self):
        return {u["url"]: u for u in self.http.get(self.url + "/v1/status").json()["engine"]["upstreams"]}

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.output()
            time.sleep(0.1)


class Reply:
    def __init__(self, reply):
        self.message = reply["choices"][0]["message"]
        self.text = self.message["content"]
        self.logprobs = reply["choices"][0]["logprobs"]
        self.finish = reply["choices"][0]["finish_reason"]
        self.memory = reply["inferscale"]
        self.prompt_tokens = reply["usage"]["prompt_tokens"]

    @property
    def first(self):
        """Log-probabilities of the first token's best ones, by text."""
        return {t["token"]: t["logprob"] for t in self.logprobs["content"][0]["top_logprobs"]}


class Spoiler:
    """Passes everything on to a vLLM server, and spoils chat completions as `fault` says: what a real one cannot be made to do."""

    def __init__(self, upstream, key):
        self.upstream, self.fault = upstream, None
        spoiler, headers = self, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                reply = requests.get(spoiler.upstream + self.path, headers=headers, timeout=PATIENCE)
                if spoiler.fault == "other model" and self.path == "/v1/models":
                    return self.reply(200, reply.content.replace(b"4096", b"2048"))
                self.pass_on(reply)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fault = spoiler.fault if self.path == "/v1/chat/completions" else None
                if fault in (429, 500, 503):
                    return self.reply(fault, b'{"error": {"message": "spoiled", "code": 500}}')
                reply = requests.post(spoiler.upstream + self.path, data=body, headers=headers, timeout=PATIENCE)
                return self.spoil(fault, reply.content) if fault else self.pass_on(reply)

            def pass_on(self, reply):
                self.reply(reply.status_code, reply.content, reply.headers.get("Content-Type", "application/json"))

            def reply(self, code, content, kind="application/json"):
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def spoil(self, fault, content):
                events = content.split(b"\n\n")
                if fault == "no end":  # a whole reply without its last event
                    content = b"\n\n".join(e for e in events if b"[DONE]" not in e)
                elif fault == "junk":
                    content = b"\n\n".join([*events[:2], b"data: {this is no JSON", *events[2:]])
                elif fault == "error":
                    content = b"\n\n".join([*events[:2], b'data: {"error": {"message": "spoiled within"}}', b"data: [DONE]", b""])
                if fault not in ("cut", "cut at once"):
                    return self.reply(200, content, "text/event-stream")
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(b"\n\n".join(events[:3]) + b"\n\n" if fault == "cut" else b"")
                self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def events_of(reply):
    """The JSON events of a stream, and whether it said that it is done."""
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], "[DONE]" in lines
