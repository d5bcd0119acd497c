"""Who may ask what: keys, tenants, and the name under which the server is reached."""

import json

import httpx
import pytest

from common import LINES, Server, error_of, make_key, parse_reply, read_all, run

OPEN = {"/favicon.ico", "/healthz", "/readyz", "/openapi.json", "/", "/app.js", "/style.css", "/chart.js"}
METHODS = ("get", "post", "patch", "delete")


@pytest.fixture(scope="module")
def routes(server):
    """(method, path, example of the body) of every route, as the server describes itself."""
    found = []
    for path, operations in server.get("/openapi.json").json()["paths"].items():
        for method in METHODS:
            if method in operations:
                content = operations[method].get("requestBody", {}).get("content", {})
                example = next((c["example"] for c in content.values() if "example" in c), None)
                found.append((method, path, example))
    assert len(found) > 20
    return found


def call(server, key, method, path, example, number=1, headers=None, user=None):
    """The route's own example, as another one's memory or user."""
    path = path.replace("{id}", str(number)).replace("{name}", server.model)
    options = {"headers": headers or {}, "params": {"user": user} if user else {}}
    if isinstance(example, str):
        options["content"] = example
        options["headers"] = {**LINES, **options["headers"]}
    elif example is not None:
        example = {**example, "user": user} if user and "user" in example else example
        options["json"] = {**example, "max_tokens": 2} if "messages" in example or "prompt" in example else example
    with server.client(key) as client:
        return client.request(method.upper(), path, **options)


# ---------------------------------------------------------------- keys


def test_no_key_and_wrong_keys(tenants, routes):
    right = tenants.red
    for method, path, example in routes:
        for header in (None, "Bearer is-0", "Bearer " + right[:-1], "Bearer " + right + "0", "Bearer", "Basic " + right, right,
                       "Bearer  " + right):
            headers = {"Authorization": header} if header is not None else {}
            with httpx.Client(base_url=tenants.server.url, timeout=60) as client:
                url = path.replace("{id}", "1").replace("{name}", tenants.server.model)
                reply = client.request(method.upper(), url, headers=headers, **({"json": {}} if example is not None else {}))
            if path in OPEN:
                assert reply.status_code in (200, 204), (path, header)
            else:
                assert reply.status_code == 401, (path, header, reply.text)
                assert error_of(reply)["code"] == ("key_missing" if header is None else "key_invalid")
                assert reply.headers["WWW-Authenticate"] == "Bearer"


def test_the_scheme_may_be_written_in_any_case(tenants):
    with httpx.Client(base_url=tenants.server.url) as client:
        assert client.get("/v1/models", headers={"Authorization": "bearer " + tenants.red}).status_code == 200


def test_keys_of_the_environment():
    keys = [run("key", name, "--json") for name in ("red", "blue")]
    made = [json.loads(k.stdout) for k in keys]
    text = ";".join(f"{k['tenant']} {k['hash']}" for k in made)
    with Server(env={"INFERSCALE_API_KEYS": text}, key=made[0]["key"]) as s:
        assert s.get("/v1/users").status_code == 200 and s.get("/v1/users", key=made[1]["key"]).status_code == 200
        assert s.get("/v1/users", key="is-x").status_code == 401


# ---------------------------------------------------------------- tenants


def test_tenants_never_meet(tenants, routes):
    s, red, blue = tenants.server, tenants.red, tenants.blue
    secret = "The red one hides the word AMARANTH."
    number, = s.add("ann", {"text": secret, "metadata": {"word": "amaranth"}}, key=red, wait=True)
    messages = [{"role": "user", "content": "The word VERMILION is hidden too."}]
    assert s.post("/v1/memories", {"user": "ann", "agent": "a", "messages": messages, "wait": True}, red).status_code == 201
    s.ask("What is hidden?", red, user="ann")
    before = s.get("/v1/memories?user=ann", red).json()

    for method, path, example in routes:
        reply = call(s, blue, method, path, example, number, user="ann")
        text = reply.text.upper()
        assert "AMARANTH" not in text and "VERMILION" not in text, f"{method} {path} tells: {reply.text}"
        if "{id}" in path:
            assert reply.status_code == 404, f"{method} {path}"
            nothing = call(s, blue, method, path, example, 987654321, user="ann")
            assert reply.text.replace(str(number), "N") == nothing.text.replace("987654321", "N"), "not there and not yours are the same"
        for headers in ({"X-User-Id": "ann"}, {"X-Tenant": "red"}):
            again = call(s, blue, method, path, example, number, headers).text.upper()
            assert "AMARANTH" not in again and "VERMILION" not in again, f"{method} {path}"

    assert s.get("/v1/memories?user=ann", red).json() == before, "nothing of it is changed or gone"
    assert s.get(f"/v1/memories/{number}", red).json()["text"] == secret
    users = s.get("/v1/users", red).json()["users"]
    assert [(u["user"], u["agent"], u["facts"]) for u in users if u["user"] == "ann"] == [("ann", "", 1), ("ann", "a", 1)]
    assert "AMARANTH" in str(s.ask("What is hidden?", red, user="ann")["inferscale"]["memories"])


def test_a_tenant_is_no_part_of_the_body(tenants):
    s, red, blue = tenants.server, tenants.red, tenants.blue
    body = '{"text": "It came from blue.", "tenant": "red", "user": "eve"}'
    assert s.post("/v1/memories/import", key=blue, content=body, headers=LINES).status_code == 200
    assert s.post("/v1/memories", {"user": "eve", "tenant": "red", "facts": ["From blue too."]}, blue).status_code == 201
    assert s.get("/v1/memories?user=eve&tenant=blue", red).json()["memories"] == []
    assert len(s.get("/v1/memories?user=eve&tenant=red", blue).json()["memories"]) == 2


def test_recent_answers_of_a_tenant(tenants):
    s, red, blue = tenants.server, tenants.red, tenants.blue
    s.ask("Hello?", red, user="only-reds")
    assert [a for a in s.get("/v1/status", red).json()["recent"] if a["user"] == "only-reds"]
    assert not [a for a in s.get("/v1/status", blue).json()["recent"] if a["user"] == "only-reds"]


def test_metrics_are_for_the_monitoring():
    made = {name: json.loads(run("key", name, "--json").stdout) for name in ("red", "monitoring", "monitoring2")}
    text = ";".join(f"{k['tenant']} {k['hash']}" for k in made.values())
    red, monitoring, other = (k["key"] for k in made.values())
    with Server(env={"INFERSCALE_API_KEYS": text}, slots=1, context=512) as s:
        s.add("ann", "The red one likes plums.", key=red)
        for key in (red, other):
            reply = s.get("/metrics", key=key)
            assert reply.status_code == 403 and error_of(reply)["code"] == "wrong_tenant" and "inferscale_" not in reply.text
        assert s.get("/metrics").status_code == 401, "no key is no way around it, on loopback neither"
        assert 'inferscale_facts{state="pending"}' in s.get("/metrics", key=monitoring).text
        assert s.get("/v1/users", key=monitoring).json()["users"] == [], "a tenant like others otherwise"
        assert len(s.get("/v1/users", key=red).json()["users"]) == 1


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("host, status", [
    ("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:9", 200), ("[::1]:80", 200), ("127.8.9.10", 200), ("evil.example", 403),
    ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403), ("127.evil", 403), ("10.0.0.1", 403), ("", 403)])
def test_names_of_this_machine(server, host, status):
    for path, wanted in (("/v1/models", status), ("/v1/users", status), ("/healthz", 200)):
        with server.connect() as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            code, _, body = parse_reply(read_all(s))
        assert code == wanted, (host, path)
        assert code == 200 or b'"wrong_host"' in body


def test_any_name_with_a_key(tenants):
    headers = {"Host": "memory.example"}
    assert tenants.server.get("/v1/models", headers=headers).status_code == 200


# ---------------------------------------------------------------- listening


def test_other_machines_need_keys(tmp_path):
    for host in ("0.0.0.0", "::"):
        done = run("serve", "--host", host, "--port", 0, "--store", tmp_path / "store", "--slots", 1, "--context", 512, "--threads", 1)
        assert done.returncode == 1 and "keys are needed" in done.stderr and "--keys" in done.stderr
    keys = tmp_path / "keys"
    key = make_key("red", keys)
    with Server("--host", "0.0.0.0", "--keys", keys, slots=1, context=512) as s:
        with httpx.Client(base_url=s.url.replace("0.0.0.0", "127.0.0.1")) as client:
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers={"Authorization": "Bearer " + key}).status_code == 200


@pytest.mark.parametrize("text", ["", "# none\n", "red\n", "red 12ab\n", "red " + "g" * 64 + "\n", "red " + "a" * 65 + "\n"])
def test_files_of_keys_that_are_none(tmp_path, text):
    keys = tmp_path / "keys"
    keys.write_text(text, encoding="utf-8")
    done = run("serve", "--port", 0, "--store", tmp_path / "store", "--keys", keys, "--slots", 1, "--context", 512, "--threads", 1)
    assert done.returncode == 1 and "inferscale key" in done.stderr
