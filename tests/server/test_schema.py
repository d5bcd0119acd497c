"""The server is what its /openapi.json says: schemathesis tries to show that it is not."""

import os
import subprocess
import sys

from common import PATIENCE, ROOT

FOLDER = ROOT / "tests" / "server"


def test_description_and_server_agree(tenants, tmp_path):
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", FOLDER / "schemathesis.toml", "run", tenants.server.url + "/openapi.json",
               "--header", f"Authorization: Bearer {tenants.blue}", "--max-examples", os.environ.get("INFERSCALE_TEST_EXAMPLES", "2"),
               "--continue-on-failure", "--no-color"]
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "SCHEMATHESIS_HOOKS": "schema_hooks"}
    done = subprocess.run([*map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=6 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout[-2000:]


def test_streams_are_as_described(server):
    """Every event of a stream, against the schema that the description gives it."""
    import json

    import jsonschema_rs

    root = server.get("/openapi.json").json()

    def validator(name):
        return jsonschema_rs.validator_for(nullable({"$ref": f"#/components/schemas/{name}", "components": root["components"]}))

    def nullable(schema):
        """OpenAPI 3.0's nullable, as JSON Schema says it."""
        if isinstance(schema, list):
            return [nullable(s) for s in schema]
        if not isinstance(schema, dict):
            return schema
        done = {key: nullable(value) for key, value in schema.items()}
        if done.get("nullable") is True:
            del done["nullable"]
            return {"anyOf": [done, {"type": "null"}]}
        return done

    def events(path, body):
        reply = server.post(path, {"stream": True, "max_tokens": 3, **body})
        assert reply.headers["Content-Type"] == "text/event-stream"
        *found, last = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
        assert last == "[DONE]" and found
        return [json.loads(event) for event in found]

    chat = {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "logprobs": True, "top_logprobs": 2}
    for options in ({}, {"stream_options": {"include_usage": True}}):
        for event in events("/v1/chat/completions", {**chat, **options}):
            validator("ChatChunk").validate(event)
        for event in events("/v1/completions", {"prompt": "One two", "logprobs": 2, **options}):
            validator("CompletionChunk").validate(event)
    with_error = validator("ChatChunk")
    assert not with_error.is_valid({"id": 5}), "the schema can fail"
