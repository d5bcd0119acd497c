"""Clients that leave: what was done for them ends at once, and the next one gets its turn.

With one slot, requests are worked on one after another; the status shows in which order and how far.
"""

import pytest

from common import NO_END, Server, error_of, parse_reply, read_all, wait_for

FAR = 1500  # tokens that an answer may have: more than it gets to before its client leaves


@pytest.fixture(scope="module")
def single():
    with Server(slots=1, context=2048) as s:
        yield s


def long_request(server, user, path="/v1/chat/completions", **more):
    body = {"user": user, "stream": True, "max_tokens": FAR, "logit_bias": NO_END, **more}
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": "Count as far as you can."}]
    else:
        body["prompt"] = "One two three"
    return server.request("POST", path, body)


def begin(server, user, **more):
    """A connection on which an answer has begun to stream."""
    s = server.connect()
    s.sendall(long_request(server, user, **more))
    text = b""
    while text.count(b"data: ") < 3:
        piece = s.recv(4096)
        assert piece, text
        text += piece
    return s


def queue(server, user, running, queued=0, **more):
    """A connection whose request is in work or waits."""
    s = server.connect()
    s.sendall(long_request(server, user, **more))
    server.wait_for_work(running, queued)
    return s


def left(server, user):
    """The answer to a user who has left: it was cut off."""
    answer, = wait_for(lambda: server.answered(user), f"the end of what {user} asked")
    assert answer["status"] == 499 and answer["tokens_generated"] < FAR
    return answer


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_leaving_in_the_middle_of_a_stream(single, path):
    who = "leaver" + path.replace("/", "-")
    begin(single, who, path=path).close()
    single.ask("Hello?", user=who + "-next")
    gone, after = left(single, who), single.answered(who + "-next")[0]
    assert gone["id"] < after["id"] and after["status"] == 200
    single.wait_for_work(0)


def test_leaving_with_the_user_in_the_query(single):
    """What the query says goes with its connection, and the answer's record has it all the same."""
    body = {"stream": True, "max_tokens": FAR, "logit_bias": NO_END, "messages": [{"role": "user", "content": "Count."}]}
    for i in range(5):
        s = single.connect()
        s.sendall(single.request("POST", f"/v1/chat/completions?user=query-leaver-{i}&agent=" + "a" * 200, body))
        text = b""
        while text.count(b"data: ") < 3:
            text += s.recv(4096)
        s.close()
        left(single, f"query-leaver-{i}")
    single.wait_for_work(0)


def test_leaving_before_the_answer(single):
    """Not a stream: nothing was sent yet."""
    queue(single, "silent-leaver", 1, stream=False).close()
    single.ask("Hello?", user="silent-next")
    left(single, "silent-leaver")
    assert single.answered("silent-next")[0]["status"] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_waiting_for_the_slot(single, stream):
    who = f"waiter-{stream}"
    first = begin(single, who + "-first")
    waiting = queue(single, who, 2, stream=stream)
    last = queue(single, who + "-last", 3, max_tokens=2)
    waiting.close()
    first.close()
    status, _, body = parse_reply(read_all(last))
    assert status == 200 and body.rstrip().endswith(b"0") and b"[DONE]" in body
    assert all(a["tokens_generated"] == 0 for a in single.answered(who)), "nothing was done for who had left"
    single.wait_for_work(0)


def test_leaving_while_queued(single):
    """Three are in work, the rest waits in front of the workers, and all of them leave."""
    first = begin(single, "queued-first")
    inside = [queue(single, f"inside-{i}", 2 + i) for i in range(2)]
    outside = [queue(single, f"outside-{i}", 3, 1 + i, stream=i % 2 == 0) for i in range(4)]
    for s in outside + inside:
        s.close()
    first.close()
    single.ask("Hello?", user="queued-next")
    single.wait_for_work(0)
    assert all(a["tokens_generated"] == 0 for i in range(4) for a in single.answered(f"outside-{i}"))
    assert left(single, "queued-first")["id"] < single.answered("queued-next")[0]["id"]


def test_fairness(single):
    """One who sends many does not keep the others waiting behind all of them."""
    many = [begin(single, "greedy")] + [queue(single, "greedy", 2 + i, max_tokens=2) for i in range(2)]
    many += [queue(single, "greedy", 3, 1 + i, max_tokens=2) for i in range(6)]
    modest = queue(single, "modest", 3, 7, max_tokens=2)
    many[0].close()
    assert parse_reply(read_all(modest))[0] == 200
    for s in many[1:]:
        assert parse_reply(read_all(s))[0] == 200
        s.close()
    later = [a["id"] for a in single.answered("greedy") if a["id"] > single.answered("modest")[0]["id"]]
    assert len(later) >= 5, "of the eight that waited, most had to let the modest one pass"


def test_who_waits_for_chunks_is_in_nobodys_way(single):
    """As many as may wait do, and are still waiting when the others have been answered; one more is put off."""
    def wait_for_chunks(i):
        s = single.connect()
        facts = [f"Number {n} is on list {i}." for n in range(10)]
        s.sendall(single.request("POST", "/v1/memories", {"user": f"patient-{i}", "facts": facts, "wait": True}))
        return s

    waiting = [wait_for_chunks(i) for i in range(24)]
    users = wait_for(lambda: (u := [x["user"] for x in single.get("/v1/users?limit=1000").json()["users"] if "patient" in x["user"]]) and
                     len(u) == 24 and u, "all that wait")
    reply = single.post("/v1/memories/search", {"user": users[0], "query": "number"})
    put_off = single.post("/v1/memories", {"facts": ["One more."], "wait": True})
    kept = single.post("/v1/memories", {"user": "hasty", "facts": ["One more."]})
    assert single.get("/v1/encode").json()["pending"] > 0, "they still wait"
    assert reply.status_code == 200 and len(reply.json()["memories"]) == 10
    assert put_off.status_code == 429 and error_of(put_off)["code"] == "too_many_wait" and int(put_off.headers["Retry-After"]) > 0
    assert kept.status_code == 201
    for s in waiting:
        assert parse_reply(read_all(s))[0] == 201
        s.close()


def test_leaving_an_import(single):
    """The report ends; the facts stay, and are encoded in the background."""
    body = "\n".join(f'{{"text": "Number {i} is on the list of things."}}' for i in range(100)).encode()
    s = single.connect()
    s.sendall(single.request("POST", "/v1/memories/import?user=import-leaver", body))
    assert b"200" in s.recv(4096)
    s.close()
    assert len(single.get("/v1/memories?user=import-leaver&limit=1000").json()["memories"]) == 100
    wait_for(lambda: single.get("/v1/encode").json()["pending"] == 0, "the end of the encoding")


def test_leaving_while_waiting_for_chunks(single):
    facts = [f"Number {i} is on another list." for i in range(100)]
    s = single.connect()
    s.sendall(single.request("POST", "/v1/memories", {"user": "wait-leaver", "facts": facts, "wait": True}))
    wait_for(lambda: single.get("/v1/memories?user=wait-leaver").json()["memories"], "the facts")
    s.close()
    assert single.delete("/v1/memories?user=wait-leaver").json() == {"deleted": 100}
