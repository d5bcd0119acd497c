"""What schemathesis sends, so that it is done in time: answers are short, and few at once."""

import schemathesis

MOST_ENTRIES = 20  # of a list that is within its bounds
MOST = {"max_tokens": 2, "max_completion_tokens": 2, "n": 2, "best_of": 2}


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def serialize_lines(context, value):
    return {"data": value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")}


def shorten(body):
    """Lists and numbers within their range are made small; what is out of it stays so."""
    if not isinstance(body, dict):
        return
    for name, bound in (("facts", 1000), ("messages", 1000), ("input", 2048)):
        if isinstance(body.get(name), list) and MOST_ENTRIES < len(body[name]) <= bound:
            del body[name][MOST_ENTRIES:]
    if "facts" in body or not ("messages" in body or "prompt" in body):
        return
    body.setdefault("max_tokens", 2)
    for name, most in MOST.items():
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and most < value <= {"n": 8, "best_of": 8}.get(name, 1 << 24):
            body[name] = most
    if body.get("best_of") and isinstance(body.get("n", 1), int):
        body["best_of"] = body.get("n") or 1
    messages = body.get("messages")
    if isinstance(messages, list) and 0 < len(messages) <= MOST_ENTRIES:
        for message in messages:
            if isinstance(message, dict) and isinstance(message.get("content"), str):
                message["content"] = message["content"][:200]
        messages.append({"role": "user", "content": "Hello?"})  # one of the user's is needed


@schemathesis.hook
def before_call(context, case, kwargs):
    shorten(case.body)
    for name, value in (case.headers or {}).items():
        case.headers[name] = str(value)  # a number of another reply, in a chain of requests
