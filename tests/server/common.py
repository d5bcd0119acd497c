"""A server for the tests: the real program on a free port, with a store of its own, always stopped again.

INFERSCALE_BIN names the program, INFERSCALE_CHAT_MODEL and INFERSCALE_EMBEDDING_MODEL the models.
"""

import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from urllib.parse import urlsplit

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("INFERSCALE_BIN", ROOT / "build" / "inferscale")).resolve()

PATIENCE = int(os.environ.get("INFERSCALE_TEST_PATIENCE", "300"))  # seconds until something counts as hung; nothing is measured by it
NO_END = {"0": -100, "2": -100}  # bans the default model's end tokens, so that an answer runs as far as it may
LINES = {"Content-Type": "application/x-ndjson"}
SANITIZERS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:")


def environment(**more):
    """The environment of a server: nothing of the caller's settings but the models."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("INFERSCALE_", "XDG_"))}
    env["INFERSCALE_MODEL"] = os.environ["INFERSCALE_CHAT_MODEL"]
    env["INFERSCALE_EMBEDDING_MODEL"] = os.environ["INFERSCALE_EMBEDDING_MODEL"]
    env.update({name: str(value) for name, value in more.items()})
    return env


def run(*arguments, **env):
    """The program, to its end."""
    return subprocess.run([BIN, *map(str, arguments)], env=environment(**env), capture_output=True, text=True,
                          timeout=PATIENCE, check=False)


def make_key(tenant, keys):
    """A new key; its line is appended to the file."""
    done = run("key", tenant, "--keys", keys, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["key"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, what):
    """Until the condition holds; its value."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"this never came: {what}")


def end_with_us():
    """In a child: it does not outlive this process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Server:
    """inferscale serve; `options` are words of its command line."""

    def __init__(self, *options, slots=4, context=1024, port=0, env=None, store=None, key=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="inferscale-serve-"))
        self.store = store or self.folder / "store"
        self.key = key
        self._log = open(self.folder / "log", "w+", encoding="utf-8", errors="replace")
        words = [BIN, "serve", "--json", "--store", self.store, "--slots", slots, "--context", context, "--threads", 1]
        if port is not None:
            words += ["--port", port]
        self.process = subprocess.Popen([*map(str, words), *map(str, options)], env=environment(**(env or {})),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
                                        preexec_fn=end_with_us)
        try:
            about = json.loads(self._read_announcement())
        except BaseException:
            self.process.kill()
            self.close()
            raise
        self.url = about["url"]
        self.model = about["model"]
        self.pid = self.process.pid

    def _read_announcement(self):
        text = b""
        until = time.monotonic() + PATIENCE
        while not text.endswith(b"}\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            assert piece, f"the server did not start:\n{self.log()}"
            text += piece
        return text

    # ---- asking

    def headers(self, key=None):
        key = key or self.key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def client(self, key=None, **options):
        """A client of this server, with its key unless another is given."""
        options.setdefault("timeout", PATIENCE)
        return httpx.Client(base_url=self.url, headers=self.headers(key), **options)

    def get(self, path, key=None, **options):
        with self.client(key) as client:
            return client.get(path, **options)

    def post(self, path, body=None, key=None, **options):
        with self.client(key) as client:
            return client.post(path, json=body, **options) if body is not None else client.post(path, **options)

    def delete(self, path, key=None, **options):
        with self.client(key) as client:
            return client.delete(path, **options)

    def patch(self, path, body, key=None, **options):
        with self.client(key) as client:
            return client.patch(path, json=body, **options)

    def add(self, user, *facts, key=None, **more):
        """Adds facts; their ids."""
        reply = self.post("/v1/memories", {"user": user, "facts": list(facts), **more}, key)
        assert reply.status_code == 201, reply.text
        return [fact["id"] for fact in reply.json()["memories"]]

    def ask(self, text, key=None, **options):
        options.setdefault("max_tokens", 4)
        reply = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **options}, key)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def status(self):
        return self.get("/v1/status").json()

    def answered(self, user):
        """The answers to this user, oldest first."""
        return [answer for answer in self.status()["recent"] if answer["user"] == user]

    def in_work(self):
        """Questions that are running and that wait behind them."""
        requests = self.status()["requests"]
        return requests["running"], requests["queued"]

    def wait_for_work(self, running, queued=0):
        wait_for(lambda: self.in_work() == (running, queued), f"{running} requests running and {queued} queued")

    def connect(self, context=None, receive_bytes=None):
        """A bare connection; receive_bytes: of the socket's buffer, so that who does not read is noticed soon."""
        place = urlsplit(self.url)
        s = socket.socket(socket.AF_INET6 if ":" in place.hostname else socket.AF_INET)
        s.settimeout(PATIENCE)
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.connect((place.hostname, place.port))
        if place.scheme == "https":
            s = (context or ssl.create_default_context()).wrap_socket(s, server_hostname=place.hostname)
        return s

    def request(self, method, path, body=None, headers=(), close=True):
        """The bytes of a request, for a bare connection."""
        place = urlsplit(self.url)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {place.netloc}", *headers]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if close:
            lines.append("Connection: close")
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    # ---- ending

    def log(self):
        self._log.flush()
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """The exit code."""
        return self.process.wait(timeout=PATIENCE)

    def close(self):
        """Removes what it left."""
        self.process.stdout.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        """Ends it as a service manager does, and looks at how it went."""
        if self.process.poll() is None:
            self.signal()
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "hung"
        log = self.log()
        self.close()
        assert code == 0 and not any(word in log for word in SANITIZERS), f"exit code {code}\n{log}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.stop()
            return
        self.process.kill()
        self.process.wait()
        print(self.log())
        self.close()


def read_all(s):
    """Everything until the other side closes, or resets."""
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionError:
            return data
        if not piece:
            return data
        data += piece


def parse_reply(data):
    """Status, headers and body of a reply's bytes."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, body


def error_of(reply):
    """The error of a reply, which must have the documented form."""
    body = reply.json()
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"] and error["code"]
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(reply.status_code, "invalid_request_error" if reply.status_code < 500 else "server_error")
    assert error["type"] == kind
    return error
