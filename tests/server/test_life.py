"""The server from its start to its end: settings, addresses, TLS, signals."""

import datetime
import ipaddress
import json
import signal
import socket
import ssl

import httpx
import pytest

from common import NO_END, Server, free_port, make_key, parse_reply, read_all, run, wait_for

SMALL = {"slots": 1, "context": 512}


def serve(tmp_path, *options, **env):
    """A start that fails."""
    return run("serve", "--store", tmp_path / "store", "--slots", 1, "--context", 512, "--threads", 1, *options, **env)


# ---------------------------------------------------------------- signals


def begin_stream(server, max_tokens):
    s = server.connect()
    s.sendall(server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Count."}], "stream": True,
                                                             "max_tokens": max_tokens, "temperature": 0, "logit_bias": NO_END}))
    text = b""
    while text.count(b"data: ") < 3:
        text += s.recv(4096)
    return s, text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end(number):
    with Server(**SMALL) as server:
        kept = server.connect()  # a connection from before
        kept.sendall(server.request("GET", "/healthz", close=False))
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        s, text = begin_stream(server, 60)
        server.signal(number)
        wait_for(lambda: "going down" in server.log(), "the signal's effect")
        replies = {}
        for path in ("/readyz", "/v1/models", "/healthz"):
            try:
                replies[path] = server.get(path).status_code
            except httpx.TransportError:
                replies[path] = None
        text += read_all(s)
        assert replies["/readyz"] in (503, None) and replies["/v1/models"] in (503, None) and replies["/healthz"] in (200, None)
        assert text.count(b'"content":') == 61 and b'"finish_reason":"length"' in text and text.rstrip().endswith(b"0")
        assert b"data: [DONE]" in text
        assert server.wait() == 0


def test_draining_says_when_to_come_again():
    with Server(**SMALL) as server:
        kept = server.connect()
        kept.sendall(server.request("GET", "/healthz", close=False))
        kept.recv(4096)
        s, _ = begin_stream(server, 60)
        server.signal()
        wait_for(lambda: "going down" in server.log(), "the signal's effect")
        kept.sendall(server.request("GET", "/v1/models"))
        status, headers, body = parse_reply(read_all(kept))
        assert status == 503 and int(headers["retry-after"]) > 0 and json.loads(body)["error"]["code"] == "draining"
        assert b"data: [DONE]" in read_all(s) and server.wait() == 0


def test_no_time_to_drain():
    with Server("--drain", 0, **SMALL) as server:
        s, _ = begin_stream(server, 100_000)
        server.signal()
        text = read_all(s)
        assert b'"code":"draining"' in text and b"data: [DONE]" not in text
        assert server.wait() == 0 and "cut off" in server.log()


def test_no_time_to_drain_what_waits():
    """Requests in front of the slot, and one that waits for chunks of many facts."""
    with Server("--drain", 0, slots=1, context=4096) as server:
        begun, _ = begin_stream(server, 100_000)
        waiting = []
        for i in range(5):
            s = server.connect()
            s.sendall(server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}))
            waiting.append(s)
        server.wait_for_work(3, 3)
        s = server.connect()
        facts = [f"Number {i} is on the list of all things that there are." for i in range(300)]
        s.sendall(server.request("POST", "/v1/memories", {"facts": facts, "wait": True}))
        wait_for(lambda: server.get("/v1/memories").json()["memories"], "the facts")
        server.signal()
        assert b"[DONE]" not in read_all(begun)
        for one in [s, *waiting]:
            text = read_all(one)
            assert text == b"" or parse_reply(text)[0] == 503
        assert server.wait() == 0


def test_a_second_signal_ends_at_once():
    with Server(**SMALL) as server:
        s, _ = begin_stream(server, 100_000)
        server.signal()
        wait_for(lambda: "going down" in server.log(), "the signal's effect")
        server.signal()
        assert server.wait() == -signal.SIGTERM
        s.close()
        server.process.returncode = 0  # as it must be here


def test_a_store_outlives_its_server(tmp_path):
    store = tmp_path / "store"
    with Server(store=store, **SMALL) as server:
        number, = server.add("ann", "Ann has a cat called Moss.", wait=True)
    with Server(store=store, **SMALL) as server:
        assert server.get(f"/v1/memories/{number}").json()["state"] == "ready"
        assert server.ask("Cat?", user="ann")["inferscale"]["memories"][0]["injected"]


def test_killed_in_the_middle(tmp_path):
    """What was acknowledged is there, whatever happens to the process."""
    store = tmp_path / "store"
    server = Server(store=store, **SMALL)
    ids = server.add("ann", *(f"Number {i} is on the list." for i in range(200)))
    begin_stream(server, 100_000)
    server.process.kill()
    server.process.wait()
    server.close()
    with Server(store=store, **SMALL) as again:
        assert [m["id"] for m in again.get("/v1/memories?user=ann&limit=1000").json()["memories"]] == ids


# ---------------------------------------------------------------- settings


def test_file_environment_and_line(tmp_path):
    config = tmp_path / "config.json"
    ports = [free_port() for _ in range(3)]
    config.write_text(json.dumps({"port": ports[0], "slots": 1, "context": 512, "quiet": True}), encoding="utf-8")

    def port(*options, **env):
        with Server("--config", config, *options, port=None, env=env, **SMALL) as server:
            assert server.get("/healthz").status_code == 200
            return int(server.url.rsplit(":", 1)[1])

    assert port() == ports[0]
    assert port(INFERSCALE_PORT=ports[1]) == ports[1], "the environment comes before the file"
    assert port("--port", ports[2], INFERSCALE_PORT=ports[1]) == ports[2], "the command line before both"


def test_file_named_by_the_environment(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"rate": 1}', encoding="utf-8")
    with Server(env={"INFERSCALE_CONFIG": config}, **SMALL) as server:
        assert [server.get("/v1/models").status_code for _ in range(2)] == [200, 429]
    with Server(env={"INFERSCALE_CONFIG": config, "INFERSCALE_RATE": 2}, **SMALL) as server:
        assert [server.get("/v1/models").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("text, words", [
    ("{", "is no JSON object"), ("[]", "is no JSON object"), ('{"port": 1.5}', "must be a text, a whole number"), ('{"prot": 1}', "unknown option"),
    ('{"port": 70000}', "--port must be"), ('{"port": 1, "port": 2}', "is no JSON object"), ('{"slots": null}', "must be a text")])
def test_bad_files(tmp_path, text, words):
    config = tmp_path / "config.json"
    config.write_text(text, encoding="utf-8")
    done = serve(tmp_path, "--config", config)
    assert done.returncode in (1, 2) and words in done.stderr and not (tmp_path / "store").exists()


def test_no_file(tmp_path):
    done = serve(tmp_path, "--config", tmp_path / "missing.json")
    assert done.returncode == 3 and "cannot read" in done.stderr


@pytest.mark.parametrize("options, words", [
    (("--port", "65536"), "--port must be"), (("--queue", "0"), "--queue must be"), (("--host", "no.such.host.invalid"), "no address to listen on"),
    (("--host", "203.0.113.7"), "keys are needed"), (("--keys", "missing"), "cannot read missing"), (("surplus",), "surplus")])
def test_bad_options(tmp_path, options, words):
    done = serve(tmp_path, *options)
    assert done.returncode in (1, 2, 3) and words in done.stderr and done.stdout == ""


def test_port_in_use(server, tmp_path):
    port = server.url.rsplit(":", 1)[1]
    done = serve(tmp_path, "--port", port)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
    assert server.get("/healthz").status_code == 200


def test_port_is_free_again_at_once():
    port = free_port()
    for _ in range(2):
        with Server(port=port, **SMALL) as server:
            assert server.get("/healthz").status_code == 200


def test_the_log_says_nothing_needless():
    with Server(**SMALL) as server:
        with server.connect() as s:  # what clients do wrong fills no log
            s.sendall(b"hello\r\n\r\n")
            read_all(s)
        begin_stream(server, 100_000)[0].close()
        server.wait_for_work(0)
        assert server.log() == ""


# ---------------------------------------------------------------- addresses


def test_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with Server("--host", "::1", **SMALL) as server:
        assert server.url.startswith("http://[::1]:") and server.get("/v1/models").status_code == 200
        assert server.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Files of a certificate that signs itself, and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
            .not_valid_before(now - day).not_valid_after(now + day).add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256()))
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                                       serialization.NoEncryption()))
    return folder / "cert.pem", folder / "key.pem"


def test_tls(certificate):
    cert, key = certificate
    trust = ssl.create_default_context(cafile=cert)
    with Server("--tls-cert", cert, "--tls-key", key, **SMALL) as server:
        assert server.url.startswith("https://")
        with server.client(verify=trust) as client:
            assert client.get("/v1/models").status_code == 200
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0, "logit_bias": NO_END, "stream": True}
            with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                assert reply.read().count(b'"content":') == 6
            large = [{"text": "x", "metadata": {"pad": "x" * 10_000}}] * 80
            assert client.post("/v1/memories", json={"facts": large}).status_code == 201, "many records of TLS"
            assert len(client.get("/v1/memories?limit=1000").content) > 800_000
        with pytest.raises(httpx.ConnectError):
            server.get("/v1/models")  # this client does not know the certificate
        plain = server.url.replace("https", "http")
        with pytest.raises(httpx.TransportError):
            httpx.get(plain + "/healthz")
        s = server.connect(trust)  # one that leaves in the middle
        s.sendall(server.request("POST", "/v1/chat/completions", {**body, "max_tokens": 100_000, "user": "tls-leaver"}))
        s.recv(100)
        s.close()
        with server.client(verify=trust) as client:
            wait_for(lambda: [a for a in client.get("/v1/status").json()["recent"] if a["user"] == "tls-leaver" and a["status"] == 499],
                     "the end of what was asked")


def test_tls_that_cannot_be(tmp_path, certificate):
    cert, key = certificate
    for options, words in ((("--tls-cert", cert), "only one of them"), (("--tls-key", key), "only one of them"),
                           (("--tls-cert", key, "--tls-key", cert), "certificate"),
                           (("--tls-cert", "missing", "--tls-key", key), "cannot read missing")):
        done = serve(tmp_path, "--port", 0, *options)
        assert done.returncode in (1, 3) and words in done.stderr, (options, done.stderr)


def test_tls_with_keys(tmp_path, certificate):
    cert, key = certificate
    red = make_key("red", tmp_path / "keys")
    with Server("--tls-cert", cert, "--tls-key", key, "--keys", tmp_path / "keys", **SMALL) as server:
        with server.client(red, verify=ssl.create_default_context(cafile=cert)) as client:
            assert client.get("/v1/users").json() == {"users": [], "next": None}
