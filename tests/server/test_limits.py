"""What a server must refuse, and how: bytes that are no HTTP, no JSON, no text; too much of anything."""

import json
import socket

import pytest

from common import LINES, NO_END, Server, error_of, parse_reply, read_all

JSON = {"Content-Type": "application/json"}


def send(server, data):
    """A bare connection's reply to these bytes."""
    with server.connect() as s:
        s.sendall(data)
        return parse_reply(read_all(s))


def code_of(body):
    return json.loads(body)["error"]["code"]


# ---------------------------------------------------------------- routes, methods, types


def test_nothing_there(server):
    for path in ("/nothing", "/v1", "/v1/", "/v1/chat", "/v1/models/", "/../etc/passwd", "/%2e%2e/etc/passwd", "/v1/memories/1/2", "/a" * 2000):
        reply = server.get(path)
        assert reply.status_code == 404 and error_of(reply)["code"] in ("no_route", "model_not_found"), path


@pytest.mark.parametrize("method, path, allow", [
    ("POST", "/v1/models", {"GET"}), ("GET", "/v1/chat/completions", {"POST"}), ("PUT", "/v1/memories", {"POST", "GET", "DELETE"}),
    ("POST", "/v1/memories/5", {"GET", "PATCH", "DELETE"}), ("DELETE", "/healthz", {"GET"}), ("OPTIONS", "/v1/embeddings", {"POST"}),
    ("PURGE", "/", {"GET"}), ("GET", "/v1/memories/search", {"POST"})])
def test_methods(server, method, path, allow):
    with server.client() as client:
        reply = client.request(method, path)
    assert reply.status_code == 405 and set(reply.headers["Allow"].split(", ")) == allow
    assert error_of(reply)["code"] == "method_not_allowed"


def test_head(server):
    with server.client() as client:
        for path in ("/", "/healthz", "/v1/models", "/v1/status"):
            reply = client.head(path)
            assert reply.status_code == 200 and reply.content == b"" and int(reply.headers["Content-Length"]) > 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", None, "application/xml",
                                  "application/x-ndjson"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/memories", "/v1/memories/search"])
def test_types_that_a_form_can_send(server, path, kind):
    reply = server.post(path, content=b'{"facts": ["x"], "user": "typed"}', headers={"Content-Type": kind} if kind is not None else {})
    assert reply.status_code == 415 and "application/json" in error_of(reply)["message"]
    assert server.get("/v1/memories?user=typed").json()["memories"] == []


def test_type_with_a_charset(server):
    reply = server.post("/v1/memories/search", content=b'{"query": "x", "k": 0}', headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert error_of(reply)["param"] == "k"


# ---------------------------------------------------------------- JSON


BAD_JSON = [
    b"", b"null", b"[]", b'"x"', b"5", b"{", b'{"query": "x"', b'{"query": "x"}}', b'{"query": "x"} {}', b"{'query': 'x'}", b'{"query": "x",}',
    b'{"query": "x", "k": NaN}', b'{"query": "x", "k": Infinity}', b'{"query": "x", "k": -Infinity}', b'{"query": "x", "k": 1e999}',
    b'{"query": "x", "k": -1e999}', b'{"query": "x", "k": 99999999999999999999}', b'{"query": "x", "k": 01}', b'{"query": "x", "k": 0x10}',
    b'{"query": "x", "query": "y"}', b'{"query": "x", "filters": {"metadata": {"a": 1, "a": 2}}}',
    b'{"query": "\xff"}', b'{"query": "\xc0\xaf"}', b'{"query": "\xed\xa0\x80"}', b'{"query": "\xf4\x90\x80\x80"}', b'{"query": "\xe2\x82"}',
    b'{"query": "\\ud800"}', b'{"query": "\\udc00\\ud800"}', b'{"query": "a\\u0000b"}', b'{"query": "\x00"}', b'{"query": "a\nb"}',
    b"\xef\xbb\xbf" + b'{"query": "x"}', b'{"query": "\\x"}', b"\x00" * 50, bytes(range(256)),
    b'{"query": "x", "filters": ' + b"[" * 100 + b"]" * 100 + b"}", b'{"a":' * 70 + b"1" + b"}" * 70, b"[" * 1_000_000, b'{"a":' * 200_000,
]


@pytest.mark.parametrize("body", BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_json(server, body):
    reply = server.post("/v1/memories/search", content=body, headers=JSON)
    assert reply.status_code == 400 and error_of(reply)["code"] in ("invalid_json", "body_missing", "too_deep")


def test_how_deep(server):
    for depth, code in ((60, "invalid_value"), (65, "too_deep")):
        body = b'{"query": "x", "k": 0, "x": ' + b"[" * depth + b"]" * depth + b"}"
        assert error_of(server.post("/v1/memories/search", content=body, headers=JSON))["code"] == code
    brackets = {"query": "[{" * 1000 + '\\"[', "k": 0}
    assert error_of(server.post("/v1/memories/search", brackets))["code"] == "invalid_value", "within a text they are no depth"


def test_big_bodies_are_read_by_a_worker(server):
    body = b'{"query": "x", "k": 0, "pad": "' + b"x" * 1_000_000 + b'"}'
    assert error_of(server.post("/v1/memories/search", content=body, headers=JSON))["param"] == "k"
    assert error_of(server.post("/v1/memories/search", content=body + b"x", headers=JSON))["code"] == "invalid_json"


@pytest.mark.parametrize("path", ["/v1/memories/search", "/v1/chat/completions", "/v1/memories/import"])
def test_how_many_values(server, path):
    """An empty object is two bytes in a body, and hundreds in memory."""
    for many in (b"{}," * 70_000 + b"1", b"1," * 600_000 + b"1"):
        body = b"[" + many + b"]" if path.endswith("import") else b'{"a": [' + many + b"]}"
        reply = server.post(path, content=body, headers=JSON)
        assert reply.status_code == 400 and error_of(reply)["code"] == "too_many_values"
    few = b'{"query": "x", "k": 0, "pad": [' + b"{}," * 60_000 + b"1]}"
    assert error_of(server.post("/v1/memories/search", content=few, headers=JSON))["param"] == "k"


@pytest.mark.parametrize("value", ["-1", "1.5", "201", "1e2", "true", '"5"', "[]", "{}", "9007199254740993", "-0.0"])
def test_numbers(server, value):
    reply = server.post("/v1/memories/search", content=b'{"query": "x", "k": %s}' % value.encode(), headers=JSON)
    assert reply.status_code == 400 and error_of(reply)["param"] == "k"


# ---------------------------------------------------------------- sizes


@pytest.fixture(scope="module")
def small():
    with Server("--max-body", "64K", slots=1, context=512) as s:
        yield s


def test_length_that_is_too_large(small):
    head = small.request("POST", "/v1/memories/search", headers=["Content-Type: application/json", "Content-Length: 70000"])
    with small.connect() as s:
        s.sendall(head)  # the reply comes without the body
        status, _, body = parse_reply(read_all(s))
    assert status == 413 and code_of(body) == "body_too_large" and b"--max-body" in body


def test_largest_body(small):
    def body(size):
        return b'{"query": "x", "k": 0, "pad": "' + b"x" * (size - 33) + b'"}'

    assert len(body(65536)) == 65536
    assert small.post("/v1/memories/search", content=body(65536), headers=JSON).status_code == 400
    assert small.post("/v1/memories/search", content=body(65537), headers=JSON).status_code == 413


def chunked(total, piece=b"x" * 16384):
    for _ in range(0, total, len(piece)):
        yield piece


@pytest.mark.parametrize("path", ["/v1/memories/search", "/v1/chat/completions", "/v1/memories/import"])
def test_pieces_that_are_too_many(small, path):
    reply = small.post(path, content=chunked(1 << 20), headers=LINES if path.endswith("import") else JSON)
    assert reply.status_code == 413 and error_of(reply)["code"] == "body_too_large"


def test_body_where_none_belongs(small):
    with small.client() as client:
        assert client.request("GET", "/healthz", content=b"x" * 1000).status_code == 200
        assert client.request("DELETE", "/v1/memories?user=x", content=b'{"user": "y"}').json() == {"deleted": 0}


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"hello\r\n\r\n", b"\r\n" * 100,
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/memories HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/memories HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/memories HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /v1/memories HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\nx"], ids=range(10))
def test_what_is_no_http(server, data):
    with server.connect() as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            reply = read_all(s)
        except OSError:
            reply = b""
    assert reply == b"" or 400 <= parse_reply(reply)[0] < 506
    assert server.get("/healthz").status_code == 200


def test_header_that_is_no_text(server):
    with server.client() as client:
        reply = client.get("/v1/memories", headers={b"X-User-Id": b"\xff\xfe"})
        assert reply.status_code == 400 and error_of(reply)["param"] == "X-User-Id"
        reply = client.get("/v1/memories", headers={"X-User-Id": "u" * 256})
        assert reply.status_code == 400 and error_of(reply)["param"] == "X-User-Id"
        assert client.get("/v1/memories", headers={b"X-User-Id": "Zoë".encode()}).status_code == 200


def test_requests_one_behind_the_other(server):
    """Several requests at once on one connection are answered in order."""
    with server.connect() as s:
        s.sendall(server.request("GET", "/healthz", close=False) + server.request("GET", "/v1/users", close=False) +
                  server.request("POST", "/v1/memories/search", {"query": "x", "k": 0}, close=False) + server.request("GET", "/v1/models"))
        text = read_all(s)
    assert [int(part.split()[0]) for part in text.split(b"HTTP/1.1 ")[1:]] == [200, 200, 400, 200]


# ---------------------------------------------------------------- too many


def test_full_queue():
    """One slot, three in work, one that waits: the next one is refused, and says when to come again."""
    long = {"messages": [{"role": "user", "content": "Count."}], "stream": True, "logit_bias": NO_END}
    with Server("--queue", 1, slots=1, context=512) as server:
        waiting = []
        for running, queued in ((1, 0), (2, 0), (3, 0), (3, 1)):
            s = server.connect()
            s.sendall(server.request("POST", "/v1/chat/completions", long))
            waiting.append(s)
            server.wait_for_work(running, queued)
        for _ in range(3):
            reply = server.post("/v1/chat/completions", long)
            assert reply.status_code == 429 and error_of(reply)["code"] == "queue_full" and int(reply.headers["Retry-After"]) > 0
        assert server.get("/v1/models").status_code == 200 and server.get("/v1/users").status_code == 200
        assert server.status()["requests"]["refused"] == 3
        for s in waiting:
            s.close()
        server.wait_for_work(0)
        assert server.ask("Hello?")["choices"]


def test_rate():
    with Server("--rate", 3, slots=1, context=512) as server:
        statuses = [server.get("/v1/models").status_code for _ in range(5)]
        assert statuses[:3] == [200, 200, 200] and statuses[4] == 429
        reply = server.post("/v1/chat/completions", {"messages": []})
        assert reply.status_code == 429 and error_of(reply)["code"] == "rate_limit_exceeded"
        assert 1 <= int(reply.headers["Retry-After"]) <= 20
        assert server.get("/readyz").status_code == 200
