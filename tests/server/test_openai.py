"""OpenAI's own client against the server: it must find everything as at OpenAI's."""

import base64
import json
import math
import struct

import openai
import pytest

from common import NO_END, Server


def connect(server, key=None, **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key or "none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(server):
    with connect(server) as c:
        yield c


def ask(client, text="Name three colours.", **options):
    options.setdefault("max_tokens", 6)
    options.setdefault("temperature", 0)
    options.setdefault("messages", [{"role": "user", "content": text}])
    return client.chat.completions.create(model="any", **options)


def about(reply):
    return reply.model_extra["inferscale"]


# ---------------------------------------------------------------- models


def test_models(client, server):
    ids = [model.id for model in client.models.list()]
    assert ids[0] == server.model and len(ids) == 2
    assert client.models.retrieve(ids[1]).owned_by == "inferscale"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.param == "model" and caught.value.code == "model_not_found" and "gpt-9" in caught.value.message


# ---------------------------------------------------------------- chat


def test_chat(client, server):
    reply = ask(client)
    choice = reply.choices[0]
    assert reply.object == "chat.completion" and reply.model == server.model and reply.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 6 and reply.usage.prompt_tokens > 0
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 6
    assert about(reply)["mode"] == "inject" and about(reply)["memories"] == []


def test_stream_is_the_same_in_pieces(client):
    chunks = list(ask(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {c.id for c in chunks} == {chunks[0].id} and {c.object for c in chunks} == {"chat.completion.chunk"}
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ask(client).choices[0].message.content
    assert len(chunks) > 3
    assert all(c.usage is None for c in chunks)
    assert "inferscale" in chunks[-1].model_extra and "inferscale" not in chunks[0].model_extra


def test_stream_with_usage(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 6
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-2].usage is None
    assert "inferscale" in chunks[-1].model_extra


def test_several_choices(client):
    reply = ask(client, n=2, temperature=2, seed=1)
    assert [c.index for c in reply.choices] == [0, 1]
    assert reply.choices[0].message.content != reply.choices[1].message.content
    assert reply.usage.completion_tokens == 12


def test_several_choices_as_a_stream(client):
    whole = ask(client, n=2, temperature=2, seed=1)
    texts, ends = ["", ""], [0, 0]
    for chunk in ask(client, n=2, temperature=2, seed=1, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
    assert texts == [c.message.content for c in whole.choices] and ends == [1, 1]


def test_stop(client):
    full = ask(client, max_tokens=12, logit_bias=NO_END).choices[0].message.content
    word = full.split()[2]
    reply = ask(client, max_tokens=12, logit_bias=NO_END, stop=["no such text", word]).choices[0]
    assert reply.finish_reason == "stop" and reply.message.content == full[: full.index(word)]
    streamed = ask(client, max_tokens=12, logit_bias=NO_END, stop=word, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == reply.message.content


def test_seed(client):
    texts = [ask(client, temperature=2, seed=seed).choices[0].message.content for seed in (5, 5, 6, 7)]
    assert texts[0] == texts[1] and len(set(texts)) > 1
    assert ask(client, temperature=2, seed=-(2**63)).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client, stream):
    reply = ask(client, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        text, tokens = "", []
        for chunk in reply:
            text += chunk.choices[0].delta.content or ""
            tokens += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    else:
        text, tokens = reply.choices[0].message.content, reply.choices[0].logprobs.content
    assert len(tokens) == 6 and "".join(t.token for t in tokens) == text
    for token in tokens:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] <= 0
        assert token.logprob == tops[0] and token.token == token.top_logprobs[0].token, "the best one is drawn"
        assert bytes(token.bytes).decode() == token.token


def test_logprobs_alone(client):
    tokens = ask(client, logprobs=True).choices[0].logprobs.content
    assert len(tokens) == 6 and all(t.top_logprobs == [] for t in tokens)
    assert ask(client).choices[0].logprobs is None


def test_logit_bias(client):
    wanted = {"1000": 100, "2000": 100}
    first = ask(client, logit_bias=wanted, max_tokens=1).choices[0].message.content
    other = {ask(client, logit_bias={**wanted, banned: -100}, max_tokens=1).choices[0].message.content for banned in wanted}
    assert first in other and len(other) == 2, "a ban leaves the other one"


def test_json_object(client):
    reply = ask(client, 'Say {"a": 1} in JSON.', response_format={"type": "json_object"}, max_tokens=60).choices[0]
    if reply.finish_reason == "stop":
        assert isinstance(json.loads(reply.message.content), dict)
    else:
        assert reply.message.content.lstrip().startswith("{")


def test_json_schema(client):
    schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}}, "required": ["colour"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}}
    reply = ask(client, response_format=form, max_tokens=40).choices[0]
    assert reply.finish_reason == "stop" and json.loads(reply.message.content)["colour"] in ("red", "blue")
    streamed = ask(client, response_format=form, max_tokens=40, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == reply.message.content


def test_bad_json_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, response_format=form)
    assert caught.value.message
    assert ask(client).choices, "and it goes on"


def test_roles_and_parts(client):
    reply = ask(client, messages=[
        {"role": "developer", "content": "Answer in one word."},
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "Name a "}, {"type": "text", "text": "colour."}]}])
    assert reply.choices[0].message.content


def test_parts_are_joined(client):
    parts = [{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}]
    reply = ask(client, messages=[{"role": "user", "content": parts}])
    assert reply.choices[0].message.content == ask(client).choices[0].message.content


def test_tools_that_the_template_does_not_know(client):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[tool])
    assert "tools" in caught.value.message


def test_newer_name_of_max_tokens(client):
    assert ask(client, max_tokens=openai.omit, max_completion_tokens=2).usage.completion_tokens == 2


# ---------------------------------------------------------------- memories


@pytest.fixture(scope="module")
def ann(server):
    """A user with three facts; their ids."""
    return server.add("ann", {"text": "Ann has a grey cat called Moss.", "time": "2024-03-04", "metadata": {"topic": "home"}},
                      {"text": "Ann plays the oboe.", "time": "2024-05-04"}, "Ann drives a red van.", wait=True)


def test_memories_of_the_user(client, ann):
    reply = ask(client, "What is my cat called?", user="ann")
    used = about(reply)["memories"]
    assert {m["id"] for m in used} == set(ann) and used[0]["id"] == ann[0] and all(m["injected"] for m in used)
    assert about(reply)["tokens_injected"] > 0
    assert reply.usage.prompt_tokens_details.cached_tokens == about(reply)["tokens_injected"]
    assert reply.usage.prompt_tokens == about(reply)["tokens_injected"] + about(reply)["tokens_prefilled"]


def test_user_of_the_header(server, ann):
    with connect(server, default_headers={"X-User-Id": "ann"}) as c:
        assert {m["id"] for m in about(ask(c, "Moss?"))["memories"]} == set(ann)
        assert about(ask(c, "Moss?", user="nobody"))["memories"] == [], "the body's user comes first"


def test_user_of_the_query(client, ann):
    reply = ask(client, "Moss?", extra_query={"user": "ann"}, stream=True)
    assert {m["id"] for m in list(reply)[-1].model_extra["inferscale"]["memories"]} == set(ann)


def test_no_memories_of_others(client, ann):
    assert about(ask(client, "What is my cat called?", user="bob"))["memories"] == []
    assert about(ask(client, "Moss?", user="ann", extra_body={"inferscale": {"run": "r1"}}))["memories"] == []


def memories(client, **options):
    return about(ask(client, "What is my cat called?", user="ann", extra_body={"inferscale": options}))


def test_how_many(client, ann):
    assert [m["id"] for m in memories(client, k=1)["memories"]] == [ann[0]]
    assert memories(client, k=0)["memories"] == []


def test_modes(client, ann):
    off, prefill, inject = (memories(client, mode=mode) for mode in ("off", "prefill", "inject"))
    assert off["memories"] == [] and off["tokens_injected"] == 0
    assert len(prefill["memories"]) == 3 and prefill["tokens_injected"] == 0
    assert prefill["tokens_prefilled"] == inject["tokens_injected"] + inject["tokens_prefilled"]
    assert (off["mode"], prefill["mode"], inject["mode"]) == ("off", "prefill", "inject")


def test_fresh(client, ann):
    fresh = memories(client, fresh=1)
    assert [m["injected"] for m in fresh["memories"]] == [False, True, True]


def test_filters(client, ann):
    assert [m["id"] for m in memories(client, filters={"metadata": {"topic": "home"}})["memories"]] == [ann[0]]
    assert [m["id"] for m in memories(client, filters={"from": "2024-05-01", "to": "2024-06-01"})["memories"]] == [ann[1]]
    assert memories(client, filters={"metadata": {"topic": "work"}})["memories"] == []


def test_conversation_behind_the_memories(client, ann):
    first = [{"role": "user", "content": "What is my cat called?"}]
    answer = ask(client, messages=first, user="ann").choices[0].message.content
    later = first + [{"role": "assistant", "content": answer}, {"role": "user", "content": "And what do I play?"}]
    for history in ("inject", "recompute"):
        reply = ask(client, messages=later, user="ann", extra_body={"inferscale": {"history": history}})
        assert reply.choices[0].message.content and len(about(reply)["memories"]) == 3
    assert about(reply)["tokens_history"] == 0


# ---------------------------------------------------------------- bare prompts


def complete(client, prompt="Once upon a", **options):
    options.setdefault("max_tokens", 3)
    options.setdefault("temperature", 0)
    return client.completions.create(model="any", prompt=prompt, **options)


def test_completion(client):
    reply = complete(client)
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-")
    assert reply.choices[0].text and reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 3


def test_completion_stream(client):
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == complete(client).choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage.completion_tokens == 3


def test_prompts_and_choices(client):
    reply = complete(client, ["Once upon a", "One two three"], n=2)
    assert [c.index for c in reply.choices] == [0, 1, 2, 3]
    assert reply.choices[0].text == reply.choices[1].text == complete(client).choices[0].text
    assert reply.choices[2].text == complete(client, "One two three").choices[0].text
    assert reply.usage.completion_tokens == 12


def test_token_ids(client):
    one = complete(client, [504, 2365, 260])
    many = complete(client, [[504, 2365, 260], [504]])
    assert one.usage.prompt_tokens == 3 and many.usage.prompt_tokens > 3 and len(many.choices) == 2
    assert one.choices[0].text == many.choices[0].text
    with pytest.raises(openai.BadRequestError):
        complete(client, [2**31 - 1])
    with pytest.raises(openai.BadRequestError):
        complete(client, [-1])


def test_completion_logprobs(client):
    choice = complete(client, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text and len(logprobs.token_logprobs) == 3
    assert all(len(top) == 2 and max(top.values()) <= 0 for top in logprobs.top_logprobs)
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset[1] == len(logprobs.tokens[0])
    assert complete(client).choices[0].logprobs is None
    assert all(top == {} for top in complete(client, logprobs=0).choices[0].logprobs.top_logprobs)


@pytest.mark.parametrize("field, value", [("echo", True), ("suffix", " the end"), ("best_of", 3)])
def test_what_completions_cannot_do(client, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **{field: value})
    assert caught.value.param == field and field in caught.value.message


def test_fields_of_completions_that_ask_for_nothing(client):
    assert complete(client, echo=False, suffix="", best_of=1).choices[0].text


# ---------------------------------------------------------------- embeddings


def embed(client, texts, **options):
    return client.embeddings.create(model="any", input=texts, **options)


def test_embeddings(client):
    texts = ["Ann has a cat.", "The cat belongs to Ann.", "Shares fell sharply on Monday."]
    reply = embed(client, texts)
    vectors = [entry.embedding for entry in reply.data]
    assert [entry.index for entry in reply.data] == [0, 1, 2] and reply.model and reply.usage.prompt_tokens > 12
    assert all(math.isclose(sum(x * x for x in v), 1, abs_tol=1e-3) for v in vectors)
    near, far = (sum(a * b for a, b in zip(vectors[0], v)) for v in vectors[1:])
    assert near > far + 0.2
    one = embed(client, texts[0])
    assert one.data[0].embedding == pytest.approx(vectors[0], abs=1e-5)


def test_embeddings_as_base64_are_the_same(client, server):
    raw = server.post("/v1/embeddings", {"input": "Moss", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    data = base64.b64decode(raw, validate=True)
    plain = embed(client, "Moss", encoding_format="float").data[0].embedding
    assert list(struct.unpack(f"<{len(plain)}f", data)) == pytest.approx(plain, abs=1e-7)


@pytest.mark.parametrize("options, param", [
    ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": ["a", ""]}, "input"), ({"input": [1, 2]}, "input"),
    ({"input": "a", "dimensions": 64}, "dimensions"), ({"input": "a", "encoding_format": "int8"}, "encoding_format")])
def test_bad_embeddings(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="any", **options)
    assert caught.value.param == param and caught.value.type == "invalid_request_error"


# ---------------------------------------------------------------- errors


BAD = [
    ({"temperature": 101}, "temperature"), ({"temperature": -0.1}, "temperature"), ({"top_p": 1.5}, "top_p"),
    ({"extra_body": {"min_p": 2}}, "min_p"), ({"extra_body": {"top_k": -1}}, "top_k"), ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"), ({"extra_body": {"repeat_penalty": 11}}, "repeat_penalty"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_completion_tokens": 1 << 25}, "max_completion_tokens"), ({"n": 0}, "n"),
    ({"n": 9}, "n"), ({"seed": "x"}, "seed"), ({"seed": 1.5}, "seed"), ({"stop": [""]}, "stop"), ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 257}, "stop"), ({"stop": [1]}, "stop"), ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": [1]}, "logit_bias"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"logprobs": 1}, "logprobs"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": "json"}, "response_format"), ({"tools": {}}, "tools"), ({"tools": [{}] * 129}, "tools"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [1]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"), ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"), ({"messages": [{"role": "robot", "content": "hi"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "hi"}]}, "messages"), ({"messages": [{"content": "hi"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages"),
    ({"user": "u" * 256}, "user"), ({"user": 5}, "user"), ({"extra_body": {"agent": []}}, "agent"),
    ({"stream_options": 1}, "stream_options"), ({"stream_options": {"include_usage": 1}}, "include_usage"),
    ({"extra_body": {"inferscale": 1}}, "inferscale"), ({"extra_body": {"inferscale": {"k": 201}}}, "k"),
    ({"extra_body": {"inferscale": {"mode": "sideways"}}}, "mode"), ({"extra_body": {"inferscale": {"fresh": -1}}}, "fresh"),
    ({"extra_body": {"inferscale": {"history": "x"}}}, "history"),
    ({"extra_body": {"inferscale": {"filters": {"from": "soon"}}}}, "from"), ({"extra_body": {"inferscale": {"filters": []}}}, "filters"),
    ({"extra_body": {"inferscale": {"filters": {"metadata": 1}}}}, "metadata"), ({"extra_body": {"inferscale": {"run": 7}}}, "run"),
]


@pytest.mark.parametrize("options, param", BAD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(BAD)])
def test_bad_fields_are_named(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert caught.value.param == param and caught.value.type == "invalid_request_error" and caught.value.message


@pytest.mark.parametrize("options", [{"logit_bias": {"2147483647": 1}}, {"extra_body": {"repeat_penalty": 0}}])
def test_what_the_model_cannot_do(client, options):
    with pytest.raises(openai.BadRequestError):
        ask(client, **options)


def test_too_long_for_the_context(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "word " * 3000)
    assert "1024" in caught.value.message, "it says how much there is"


def test_wrong_key(tenants):
    with connect(tenants.server, "is-wrong") as c, pytest.raises(openai.AuthenticationError) as caught:
        c.models.list()
    assert caught.value.code == "key_invalid" and caught.value.type == "authentication_error"


def test_too_many_requests():
    with Server("--rate", 2) as s, connect(s) as c:
        c.models.list()
        c.models.list()
        with pytest.raises(openai.RateLimitError) as caught:
            c.models.list()
        assert caught.value.code == "rate_limit_exceeded" and int(caught.value.response.headers["Retry-After"]) > 0
        assert s.get("/healthz").status_code == 200, "what watches the server is not limited"
