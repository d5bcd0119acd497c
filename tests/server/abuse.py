"""What a server meets on an open network: clients by the thousand, slow ones, half ones, huge ones, wrong ones.

    abuse.py [--connections 10000]      starts a server of its own and prints what came of each

Each is a function of a running server; behind each the server must answer, have given back its memory, and hold no
file or connection of it.
"""

import argparse
import os
import random
import socket
import sys
import threading

from common import NO_END, Server, parse_reply, read_all, wait_for

CONNECTIONS = 10_000
GROWTH_KIB = 8 << 10  # of the process's own memory, beyond which it has kept something
LARGE_KIB = 24 << 10  # behind bodies of many MiB, of which malloc keeps parts of pages, for each thread anew
GIB = 1 << 30
OPTIONS = ("--idle", 20)  # the HTTP library sees some ends of connections only when nothing has moved for so long


def rss(server):
    """The process's own memory in KiB; of the models' files it says nothing.  0 where a sanitizer keeps what is freed."""
    with open(f"/proc/{server.pid}/maps", encoding="utf-8") as maps:
        mapped = maps.read()
    if "libasan" in mapped or "libtsan" in mapped:
        return 0
    with open(f"/proc/{server.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def open_files(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def answers(server):
    assert server.get("/healthz").status_code == 200
    assert server.post("/v1/memories/search", {"query": "x", "k": 0}).status_code == 400


def many_connections(server, connections=CONNECTIONS):
    """Opened and dropped: without a word, in the middle of a request, or behind it; some by a reset."""
    for i in range(connections):
        try:
            s = server.connect()
        except OSError:
            continue  # as many as it may have are open already; it goes on when they are gone
        with s:
            if i % 4 == 1:
                s.sendall(b"GET /healthz HT")
            elif i % 4 == 2:
                s.sendall(server.request("GET", "/v1/models", close=False))
            elif i % 4 == 3:
                s.sendall(server.request("POST", "/v1/memories/search", {"query": "x", "k": 0}))
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        if i % 1000 == 0:
            answers(server)


def connections_held_open(server):
    """As many at once as a process may have files, all silent; meanwhile others are served."""
    held = []
    try:
        for _ in range(800):
            held.append(server.connect())
        answers(server)
    finally:
        for s in held:
            s.close()


def byte_by_byte(server):
    """Slow clients, each of whose bytes comes alone; the fast ones between do not wait for them."""
    data = server.request("POST", "/v1/memories/search", {"query": "x", "k": 0})
    slow = [server.connect() for _ in range(20)]
    for i in range(len(data)):
        for s in slow:
            s.sendall(data[i:i + 1])
        if i % 50 == 0:
            answers(server)
    for s in slow:
        assert parse_reply(read_all(s))[0] == 400
        s.close()


def slow_reader(server):
    """A stream that nobody reads does not keep the engine: others are answered while it waits."""
    body = {"messages": [{"role": "user", "content": "Count."}], "user": "slow", "stream": True, "max_tokens": 200, "temperature": 0,
            "logit_bias": NO_END}
    slow = server.connect(receive_bytes=2048)
    slow.sendall(server.request("POST", "/v1/chat/completions", body))
    wait_for(lambda: server.answered("slow"), "the end of an answer that nobody reads")
    assert server.answered("slow")[-1]["tokens_generated"] == 200
    answers(server)
    text = b""
    while piece := slow.recv(64):
        text += piece
    assert text.count(b'"content":') == 201 and b"[DONE]" in text, "and it is whole when it is read at last"
    slow.close()


def half_requests(server):
    """Clients that stop in the middle and leave."""
    whole = server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    for n in range(0, len(whole), 7):
        with server.connect() as s:
            s.sendall(whole[:n])
    with server.connect() as s:
        s.sendall(whole[:-5])
        s.shutdown(socket.SHUT_WR)
        reply = read_all(s)
    assert reply == b"" or parse_reply(reply)[0] >= 400


def announced_gigabyte(server):
    """A length of 1 GB is answered at once; whoever sends all the same is cut off."""
    for path in ("/v1/memories", "/v1/chat/completions", "/v1/memories/import", "/v1/models", "/healthz", "/nowhere"):
        head = server.request("POST", path, headers=["Content-Type: application/json", f"Content-Length: {GIB}"])
        with server.connect() as s:
            s.sendall(head)
            status, _, _ = parse_reply(read_all(s))
            assert status in (404, 405, 413), status
        with server.connect() as s:
            sent = 0
            try:
                while sent < GIB:
                    sent += s.send(head if sent == 0 else b"x" * 65536)
            except OSError:
                pass
            assert sent < 64 << 20, f"{sent} bytes were taken"


def chunked_gigabyte(server):
    """1 GB in pieces, whose end nobody knows: it is never held, and answered or cut off."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = server.request("POST", "/v1/memories", headers=["Content-Type: application/json", "Transfer-Encoding: chunked"])
    before = rss(server)
    with server.connect() as s:
        try:
            s.sendall(head)
            for i in range(GIB // 65536):
                s.sendall(piece)
                if i % 4096 == 1000:
                    answers(server)
                    assert rss(server) < before + (48 << 10), "it is not kept"
            s.sendall(b"0\r\n\r\n")
        except ConnectionError:
            return
        assert parse_reply(read_all(s))[0] == 413


def broken_texts(server):
    """Bytes at random, and good requests with bytes at random in them."""
    chance = random.Random(7)
    good = server.request("POST", "/v1/memories/search", {"query": "x", "k": 0, "filters": {"metadata": {"a": [1, 2, {"b": "c"}]}}})
    start = good.index(b"\r\n\r\n") + 4
    for i in range(600):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(start if i % 2 else 0, len(data))] = chance.randrange(256)
        with server.connect() as s:
            s.settimeout(0.05)  # it may wait for more; whether it does is not looked at
            s.sendall(bytes(data) if i % 3 else chance.randbytes(300))
            try:
                reply = s.recv(65536)
            except (TimeoutError, ConnectionError):
                continue
        assert not reply or parse_reply(reply)[0] not in (500, 503), bytes(data)


def large_and_deep(server):
    """Bodies that are as large as they may be, and costly to read; from several at once."""
    bodies = [b"[" * (8 << 20), b'{"query": "' + b"\\u00e9" * (2 << 20) + b'"}', b'{"a": [' + b"1," * (4 << 20) + b"1]}",
              b'{"query": "x", "k": 0, "pad": [' + b"{}," * (2 << 20) + b"{}]}"]

    def send(body):
        with server.connect() as s:
            s.sendall(server.request("POST", "/v1/memories/search", body))
            replies.append(parse_reply(read_all(s))[0])

    replies = []
    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for t in threads:
        t.start()
    answers(server)
    for t in threads:
        t.join()
    assert replies == [400] * 4, replies


ALL = [many_connections, connections_held_open, byte_by_byte, slow_reader, half_requests, announced_gigabyte, chunked_gigabyte, broken_texts,
       large_and_deep]


def settle(server):
    """The server's open files when it is quiet, after everything was used once."""
    for _ in range(3):
        answers(server)
        server.ask("Hello?")
    for act in (broken_texts, large_and_deep):
        act(server)
    wait_for(lambda: server.in_work() == (0, 0), "rest")
    return open_files(server)


def check(server, act, files, **options):
    """Does it, and looks at what is left."""
    memory = rss(server)
    allowed = memory + (LARGE_KIB if act is large_and_deep else GROWTH_KIB)
    act(server, **options)
    answers(server)
    wait_for(lambda: server.in_work() == (0, 0), "rest")
    wait_for(lambda: open_files(server) <= files + 2, f"the end of all connections of {act.__name__}")
    wait_for(lambda: rss(server) <= allowed, f"the memory that {act.__name__} took: {memory} KiB before, {rss(server)} now")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--connections", type=int, default=CONNECTIONS)
    connections = options.parse_args().connections
    with Server(*OPTIONS) as server:
        files = settle(server)
        print(f"{'at rest':24} {rss(server)} KiB, {files} files", flush=True)
        for act in ALL:
            more = {"connections": connections} if act is many_connections else {}
            check(server, act, files, **more)
            print(f"{act.__name__:24} {rss(server)} KiB, {open_files(server)} files", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
