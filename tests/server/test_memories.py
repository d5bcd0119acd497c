"""The memory interface: a fact from its first word to its last, and what may not be done."""

import json

import pytest

from common import LINES, NO_END, ROOT, error_of, wait_for

SAMPLE = ROOT / "data" / "sample" / "conversation.jsonl"


def listed(server, user, **query):
    reply = server.get("/v1/memories", params={"user": user, **query})
    assert reply.status_code == 200, reply.text
    return reply.json()


def search(server, user, query, **more):
    reply = server.post("/v1/memories/search", {"user": user, "query": query, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["memories"]


# ---------------------------------------------------------------- a fact's life


def test_life(server, user):
    fact = {"text": "Ann has a cat called Moss.", "source": "D1:3", "time": "2024-03-04T18:20:00+01:00", "metadata": {"topic": "home"}}
    reply = server.post("/v1/memories", {"user": user, "facts": [fact, "Ann lives in Leiden."], "wait": True})
    assert reply.status_code == 201
    first, second = reply.json()["memories"]
    assert first["text"] == fact["text"] and first["source"] == "D1:3" and first["metadata"] == {"topic": "home"}
    assert first["time"] == "2024-03-04T17:20:00Z" and second["time"] is None and second["metadata"] is None
    assert first["state"] == second["state"] == "ready"
    one = f"/v1/memories/{first['id']}"

    assert server.get(one).json() == {**first, "scope": {"user": user, "agent": "", "run": ""}}
    assert search(server, user, "pet", k=1)[0]["id"] == first["id"]
    assert listed(server, user) == {"memories": [first, second], "next": None}

    changed = server.patch(one, {"text": "Ann has a dog called Bruno.", "metadata": {"topic": "pets"}}).json()
    assert changed["id"] == first["id"] and changed["text"] == "Ann has a dog called Bruno." and changed["time"] == first["time"]
    assert search(server, user, "Bruno", k=1)[0]["id"] == first["id"]
    assert "Moss" not in json.dumps(search(server, user, "Moss"))
    assert search(server, user, "dog", filters={"metadata": {"topic": "home"}}) == []
    wait_for(lambda: server.get(one).json()["state"] == "ready", "the chunk of the new text")

    editions = server.get(one + "/history").json()
    assert editions["id"] == first["id"]
    assert [e["text"] for e in editions["editions"]] == [fact["text"], "Ann has a dog called Bruno."]
    assert editions["editions"][0]["metadata"] == {"topic": "home"}

    assert server.delete(one).json() == {"deleted": 1}
    for gone in (server.get(one), server.delete(one), server.patch(one, {"text": "x"}), server.get(one + "/history")):
        assert gone.status_code == 404 and error_of(gone)["param"] == "id"
    assert [m["id"] for m in listed(server, user)["memories"]] == [second["id"]]

    assert server.delete("/v1/memories", params={"user": user}).json() == {"deleted": 1}
    assert listed(server, user)["memories"] == []
    assert server.delete("/v1/memories", params={"user": user}).json() == {"deleted": 0}


def test_messages_become_turns_and_facts(server, user):
    messages = [{"role": "user", "content": "I moved to Leiden.", "time": 1709576400}, {"role": "assistant", "content": "How nice!"},
                {"role": "user", "content": "My street is called Oude Vest.", "name": "Ann"}]
    reply = server.post("/v1/memories", {"user": user, "messages": messages, "wait": True})
    made = reply.json()["memories"]
    assert reply.status_code == 201 and [m["text"] for m in made] == [messages[0]["content"], messages[2]["content"]]
    assert made[0]["time"] == "2024-03-04T18:20:00Z" and made[1]["time"] and made[0]["source"] != made[1]["source"]
    scopes = server.get("/v1/users", params={"limit": 1000}).json()["users"]
    assert {"user": user, "agent": "", "run": "", "facts": 2, "turns": 3} in scopes
    assert server.post("/v1/memories", {"user": user, "messages": [messages[1]]}).json() == {"memories": []}


def test_pages(server, user):
    ids = server.add(user, *(f"Number {i} is on the list." for i in range(25)))
    seen, after = [], 0
    while after is not None:
        page = listed(server, user, after=after, limit=10)
        assert len(page["memories"]) in (10, 5)
        seen += [m["id"] for m in page["memories"]]
        after = page["next"]
    assert seen == ids == sorted(ids)
    assert listed(server, user, limit=25)["next"] is None
    assert listed(server, "nobody-at-all") == {"memories": [], "next": None}


def test_pages_of_users(server, user):
    for i in range(5):
        server.add(f"{user}-{i}", "Here.")
    seen, after = [], 0
    while after is not None:
        page = server.get("/v1/users", params={"after": after, "limit": 2}).json()
        seen += [u["user"] for u in page["users"]]
        after = page["next"]
    assert [u for u in seen if u.startswith(user)] == [f"{user}-{i}" for i in range(5)] and len(seen) == len(set(seen))


def test_scopes_are_apart(server, user):
    for scope in ({}, {"agent": "cook"}, {"agent": "cook", "run": "r1"}, {"run": "r1"}):
        body = {"user": user, "facts": [f"This is {scope or 'plain'}."], **scope}
        assert server.post("/v1/memories", body).status_code == 201
    for scope in ({}, {"agent": "cook"}, {"agent": "cook", "run": "r1"}, {"run": "r1"}):
        assert [m["text"] for m in listed(server, user, **scope)["memories"]] == [f"This is {scope or 'plain'}."]
    assert server.delete("/v1/memories", params={"user": user, "agent": "cook", "run": "r1"}).json() == {"deleted": 1}
    assert listed(server, user, agent="cook")["memories"]
    assert server.delete("/v1/memories", params={"user": user}).json() == {"deleted": 3}, "all that the user has"
    assert user not in [u["user"] for u in server.get("/v1/users", params={"limit": 1000}).json()["users"]]


def test_user_of_the_header(server, user):
    headers = {"X-User-Id": user}
    assert server.post("/v1/memories", {"facts": ["It is mine."]}, headers=headers).status_code == 201
    assert len(server.get("/v1/memories", headers=headers).json()["memories"]) == 1
    assert server.post("/v1/memories/search", {"query": "mine"}, headers=headers).json()["memories"]
    assert server.delete("/v1/memories", headers=headers).json() == {"deleted": 1}


def test_default_user(server):
    assert server.post("/v1/memories", {"facts": ["It is nobody's."]}).status_code == 201
    assert [m["text"] for m in server.get("/v1/memories").json()["memories"]] == ["It is nobody's."]
    for bare in (server.delete("/v1/memories"), server.delete("/v1/memories", params={"user": ""})):
        assert bare.status_code == 400 and error_of(bare)["param"] == "user", "all of somebody must be named"
    assert server.delete("/v1/memories", params={"user": "default"}).json() == {"deleted": 1}


def test_search_filters(server, user):
    ids = server.add(user, {"text": "Tea at noon.", "time": 1709553600, "metadata": {"kind": "tea", "n": 1}},
                     {"text": "Tea at night.", "time": 1709596800, "metadata": {"kind": "tea", "n": 2}}, "Coffee.")

    def found(**filters):
        return [m["id"] for m in search(server, user, "tea", filters=filters)]

    assert sorted(found(metadata={"kind": "tea"})) == ids[:2]
    assert found(metadata={"kind": "tea", "n": 2}) == [ids[1]]
    assert found(**{"from": "2024-03-04T12:00:00Z", "to": "2024-03-04T13:00:00Z"}) == [ids[0]]
    assert found(**{"from": 1709553601}) == [ids[1]] and found(to=1709553600) == []
    scores = [m["score"] for m in search(server, user, "tea")]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3


TEXTS = ["Zoë's café serves naïve 東京 sushi 🍣.", "\u202eright to left\u202c", "e\u0301 is not \u00e9", "quotes \" ' and \\ and </script>",
         "tabs\tand\x01controls\x7f", "🏳️‍🌈" * 20]
LONG = ["🏳️‍🌈" * 292, "ß" * 2048, "a" * 4096]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_come_back_as_they_were(server, user, text):
    person = user + "Ünïcödé 用户"
    number, = server.add(person, {"text": text, "source": "šource", "metadata": {"ключ": [text[:20], None, 1.5]}}, wait=True)
    kept = server.get(f"/v1/memories/{number}").json()
    assert kept["text"] == text and kept["source"] == "šource" and kept["metadata"] == {"ключ": [text[:20], None, 1.5]}
    assert kept["scope"]["user"] == person and listed(server, person)["memories"][0]["text"] == text
    assert server.ask("What do you know?", user=person)["inferscale"]["memories"][0]["text"] == text


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_texts_longer_than_the_context(server, user, text):
    number, = server.add(user, text)
    assert server.get(f"/v1/memories/{number}").json()["text"] == text
    assert search(server, user, "word")[0]["text"] == text
    about = server.ask("What do you know?", user=user)["inferscale"]
    assert about["memories"] == [] and about["dropped"] == 1
    assert server.delete("/v1/memories", params={"user": user}).json() == {"deleted": 1}


def test_line_breaks_become_blanks(server, user):
    number, = server.add(user, "one\ntwo\r\nthree")
    assert server.get(f"/v1/memories/{number}").json()["text"] == "one two  three"


# ---------------------------------------------------------------- what is refused


ADD = [
    ({}, "facts"), ({"facts": []}, "facts"), ({"facts": ["a"], "messages": [{"role": "user", "content": "b"}]}, "facts"),
    ({"facts": "a"}, "facts"), ({"facts": [1]}, "facts"), ({"facts": [""]}, "facts"), ({"facts": [{}]}, "facts"),
    ({"facts": ["a"] * 1001}, "facts"), ({"facts": ["a" * 4097]}, "facts"), ({"facts": [{"text": "a" * 4097}]}, "text"),
    ({"facts": [{"text": 1}]}, "text"), ({"facts": [{"text": "a", "source": "s" * 257}]}, "source"),
    ({"facts": [{"text": "a", "time": "yesterday"}]}, "time"), ({"facts": [{"text": "a", "time": 1e300}]}, "time"),
    ({"facts": [{"text": "a", "time": 253402300800}]}, "time"), ({"facts": [{"text": "a", "time": "2024-02-30"}]}, "time"),
    ({"facts": [{"text": "a", "metadata": []}]}, "metadata"), ({"facts": ["a"], "wait": "yes"}, "wait"),
    ({"facts": ["a"], "user": "u" * 256}, "user"), ({"facts": ["a"], "agent": 1}, "agent"), ({"facts": ["a"], "run": {}}, "run"),
    ({"messages": []}, "facts"), ({"messages": [{}]}, "messages"), ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 4097}]}, "content"), ({"messages": [{"role": "r" * 33, "content": "x"}]}, "role"),
    ({"messages": [{"role": "user", "content": "x", "time": []}]}, "time"),
    ({"messages": [{"role": "user", "content": "x"}] * 1001}, "messages"),
    ({"messages": [{"role": "user", "content": "x", "name": "n" * 256}]}, "name"),
]


@pytest.mark.parametrize("body, param", ADD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(ADD)])
def test_bad_additions(server, body, param):
    reply = server.post("/v1/memories", {"user": "bad", **body})
    assert reply.status_code == 400 and error_of(reply)["param"] == param
    assert listed(server, "bad")["memories"] == [], "nothing of it is kept"


@pytest.mark.parametrize("body, param", [
    ({}, "query"), ({"query": ""}, "query"), ({"query": 1}, "query"), ({"query": "q" * 4097}, "query"), ({"query": "q", "k": 0}, "k"),
    ({"query": "q", "k": 201}, "k"), ({"query": "q", "k": 1.5}, "k"), ({"query": "q", "filters": {"to": True}}, "to")])
def test_bad_searches(server, body, param):
    reply = server.post("/v1/memories/search", body)
    assert reply.status_code == 400 and error_of(reply)["param"] == param


def test_search_of_an_unknown_user(server):
    reply = server.post("/v1/memories/search", {"user": "nobody-at-all", "query": "x"})
    assert reply.status_code == 404 and error_of(reply)["message"]


@pytest.mark.parametrize("query, param", [
    ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=1.5", "limit"), ("after=-1", "after"),
    ("after=99999999999999999999x", "after"), ("user=" + "u" * 256, "user"), ("user=%ff%fe", "user"), ("user=a%00b", "user"),
    ("agent=" + "a" * 256, "agent"), ("run=%80", "run")])
def test_bad_queries(server, query, param):
    reply = server.get("/v1/memories?" + query)
    assert reply.status_code == 400 and error_of(reply)["param"] == param
    if param in ("user", "agent", "run"):
        reply = server.delete("/v1/memories?" + ("user=x&" if param != "user" else "") + query)
        assert reply.status_code == 400 and error_of(reply)["param"] == param


def test_bad_changes(server, user):
    number, = server.add(user, "Before.")
    for body, param in (({}, None), ({"text": ""}, None), ({"text": "a" * 4097}, "text"), ({"time": "x"}, "time"), ({"metadata": 1}, "metadata"),
                        ({"source": 1}, "source")):
        reply = server.patch(f"/v1/memories/{number}", body)
        assert reply.status_code == 400 and error_of(reply)["param"] == param, body
    assert server.get(f"/v1/memories/{number}").json()["text"] == "Before."
    assert len(server.get(f"/v1/memories/{number}/history").json()["editions"]) == 1


def test_ids_that_are_none(server):
    for number in ("0", "999999999999999999"):
        assert error_of(server.get("/v1/memories/" + number))["code"] == "no_memory_with_id"
    for number in ("9999999999999999999", "x", "-1", "1x", "1/", "1/x"):
        assert error_of(server.get("/v1/memories/" + number))["code"] == "no_route"


# ---------------------------------------------------------------- import


def import_lines(server, body, headers=None, **query):
    reply = server.post("/v1/memories/import", content=body, headers=headers or LINES, params=query)
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    *progress, last = [json.loads(line) for line in reply.text.splitlines()]
    return progress, last


def test_import_of_the_sample(server, user):
    lines = SAMPLE.read_bytes().splitlines()
    facts = [json.loads(line) for line in lines if b'"type": "fact"' in line]
    body = b"\n".join([b'{"type": "fact"}', b"not JSON", b"", *lines[:80], b'{"type": "fact", "text": "x", "time": "never"}', *lines[80:]])
    progress, last = import_lines(server, body, user=user)
    assert last["facts"] == len(facts) and last["turns"] == len(lines) - len(facts)
    assert last["skipped"] == 3 and [why["where"] for why in last["why"]] == ["line 1", "line 2", "line 84"] and all(w["why"] for w in last["why"])
    assert progress and all(set(line) == {"done", "total"} and line["done"] <= line["total"] for line in progress)
    assert [line["done"] for line in progress] == sorted(line["done"] for line in progress)
    assert server.get("/v1/encode").json()["pending"] == 0
    assert [m["text"] for m in listed(server, user, limit=1000)["memories"]] == [fact["text"] for fact in facts]
    assert all(m["state"] == "ready" for m in listed(server, user, limit=1000)["memories"])
    again = import_lines(server, lines[0], user=user)[1]
    assert again["turns"] == 1
    assert {u["user"]: u["turns"] for u in server.get("/v1/users?limit=1000").json()["users"]}[user] == len(lines) - len(facts), "a turn stays one"


def test_import_to_named_scopes(server, user):
    records = [{"text": "Mine."}, {"text": "Hers.", "user": user + "-her", "tenant": "red"}, {"text": "The cook's.", "agent": "cook"}]
    _, last = import_lines(server, "\n".join(map(json.dumps, records)), user=user)
    assert last == {"facts": 3, "turns": 0, "skipped": 0, "why": []}
    assert [m["text"] for m in listed(server, user)["memories"]] == ["Mine."]
    assert [m["text"] for m in listed(server, user + "-her")["memories"]] == ["Hers."]
    assert [m["text"] for m in listed(server, user, agent="cook")["memories"]] == ["The cook's."]


def test_import_of_locomo(server):
    body = (ROOT / "tests" / "corpus" / "import" / "locomo.json").read_bytes()
    _, last = import_lines(server, body, {"Content-Type": "application/json"})
    assert last["facts"] > 0 and "Ann has a dog." in [m["text"] for m in listed(server, "c1")["memories"]]


def test_import_tells_at_most_twenty(server, user):
    _, last = import_lines(server, '{"text": 1}\n' * 30 + '{"text": "Good."}', user=user)
    assert last["skipped"] == 30 and len(last["why"]) == 20 and last["facts"] == 1


@pytest.mark.parametrize("body", [b"", b"  \n", b"hello", b"[1,"])
def test_imports_that_are_none(server, body):
    reply = server.post("/v1/memories/import?user=bad", content=body, headers=LINES)
    assert reply.status_code == 400 and error_of(reply)["message"]


# ---------------------------------------------------------------- encoding, numbers


def test_encoding_goes_on_by_itself(server, user):
    ids = server.add(user, *(f"{name} is a friend of Ann." for name in ("Bob", "Cleo", "Dora")))
    wait_for(lambda: server.get("/v1/encode").json()["pending"] == 0, "the end of the encoding")
    assert all(m["state"] == "ready" for m in listed(server, user)["memories"]) and len(ids) == 3
    assert all(m["injected"] for m in server.ask("Who is a friend?", user=user)["inferscale"]["memories"])


def test_metrics_are_prometheus(server, user):
    from prometheus_client.parser import text_string_to_metric_families

    def sample(name, **labels):
        text = server.get("/metrics").text
        families = list(text_string_to_metric_families(text))
        assert len({f.name for f in families}) == len(families)
        return sum(s.value for f in families for s in f.samples if s.name == name and labels.items() <= s.labels.items())

    before = [sample("inferscale_tokens_total", kind=kind) for kind in ("injected", "generated")]
    asked = sample("inferscale_ttft_seconds_count", mode="inject")
    server.add(user, "Ann has a cat.", wait=True)
    reply = server.ask("Cat?", user=user, max_tokens=3, logit_bias=NO_END)
    assert sample("inferscale_tokens_total", kind="injected") == before[0] + reply["inferscale"]["tokens_injected"]
    assert sample("inferscale_tokens_total", kind="generated") == before[1] + 3
    assert sample("inferscale_ttft_seconds_count", mode="inject") == asked + 1
    assert sample("inferscale_ttft_seconds_bucket", mode="inject", le="+Inf") == asked + 1
    assert sample("inferscale_replies_total", route="/v1/chat/completions", status="2xx") >= 1
    assert sample("inferscale_facts") > 0 and sample("inferscale_requests_running", queue="store") == 1


def test_status_shows_the_answer(server, user):
    server.ask("Hello?", user=user, max_tokens=2, logit_bias=NO_END)
    last = server.answered(user)[-1]
    assert last["status"] == 200 and last["tokens_generated"] == 2 and last["mode"] == "inject"
