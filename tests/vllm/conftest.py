import json

import pytest
import transformers

from common import MODEL, ROOT, Server


class Prompts:
    """The sample's facts as a prompt has them, in token ids."""

    def __init__(self):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        lines = [json.loads(line) for line in (ROOT / "data/sample/conversation.jsonl").read_text().splitlines()]
        self.facts = [self.fact(x["time"][:10], x["text"]) for x in lines if x["type"] == "fact"]
        self.header = self.encode("<|im_start|>system\nYou are a helpful assistant. You remember this about the user:\n")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens):
        return self.tokenizer.decode(tokens)

    def fact(self, date, text):
        return self.encode(f"- {date}: {text}\n")

    def tail(self, question):
        return self.encode(f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture(scope="session")
def prompts():
    return Prompts()


@pytest.fixture(scope="module")
def server():
    """With prefix caching and prompts in pieces."""
    with Server("--max-num-batched-tokens", "512", "--enable-prompt-tokens-details") as s:
        yield s
