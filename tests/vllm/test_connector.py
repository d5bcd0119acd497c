"""The connector in a vLLM server: what is injected is what vLLM itself would have had there, or is computed instead."""

import re
import secrets
import sys
import time
from types import SimpleNamespace

import pytest
import requests
import torch
import transformers

from common import BLOCK, MODEL, ROOT, Server, at_once, fresh_salt, inject, whole_blocks

sys.path.insert(0, str(ROOT / "python/inferscale_vllm"))  # without the package, which needs vLLM
from describe import describe

QUESTION = "Where does Elke live?"


def memory(prompts, k):
    return prompts.header + sum(prompts.facts[:k], [])


def assert_same(got, want):
    """Bit for bit."""
    assert got.tokens == want.tokens
    assert got.steps == want.steps


def test_whole_prompt_at_its_own_place_is_exact(server, prompts):
    """As from vLLM's own prefix cache: the same tokens with the same log-probabilities.  It is encoded out of the same prompt, since
    bfloat16 rounds otherwise in a batch of another size."""
    front, tail = memory(prompts, 45), prompts.tail(QUESTION)
    server.complete(front + tail, salt="own", n=1)
    own = server.complete(front + tail, salt="own")
    chunk = server.encode(front + tail, end=len(front), salt=fresh_salt())  # with nothing of it cached, as before
    injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(chunk))
    assert own.cached == injected.cached == whole_blocks(len(front))
    assert_same(injected, own)


def test_whole_prompt_in_pieces_is_exact(server, prompts):
    """Chunks that were made where they stand, with borders inside blocks, are that prompt."""
    front, tail = memory(prompts, 20), prompts.tail(QUESTION)
    server.complete(front + tail, salt="own pieces", n=1)
    own = server.complete(front + tail, salt="own pieces")
    borders = [0, 7, 45, 46, 200, len(front)]
    chunks = [server.encode(front + tail, begin, end=end) for begin, end in zip(borders, borders[1:])]
    injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(*chunks))
    assert injected.cached == whole_blocks(len(front))
    assert_same(injected, own)


@pytest.fixture(scope="module")
def reference():
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@torch.no_grad()
def composed_by_hand(model, runs, tail):
    """Log-probabilities behind the tail when each run was computed alone, but at its own positions of the prompt: Hugging Face's own code
    rotates there, so nothing of this project takes part."""
    layers = None
    position = 0
    for run in runs:
        ids = torch.arange(position, position + len(run))[None]
        cache = model(torch.tensor([run]), position_ids=ids, use_cache=True).past_key_values
        parts = [(layer.keys, layer.values) for layer in cache.layers]
        layers = parts if layers is None else [(torch.cat([a, c], 2), torch.cat([b, d], 2)) for (a, b), (c, d) in zip(layers, parts)]
        position += len(run)
    past = transformers.DynamicCache()
    for number, (k, v) in enumerate(layers):
        past.update(k, v, number)
    ids = torch.arange(position, position + len(tail))[None]
    logits = model(torch.tensor([tail]), position_ids=ids, past_key_values=past, use_cache=True).logits[0, -1]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1)])
def test_moved_chunks_are_as_if_made_there(server, prompts, reference, order):
    """Offsets that are no multiple of a block; against another implementation in float32, so within bfloat16's noise."""
    parts = [sum(prompts.facts[i * 6:i * 6 + 5], []) + prompts.facts[40][:i] for i in range(4)]
    chunks = [server.encode(part) for part in parts]
    header = server.encode(prompts.header)
    runs = [prompts.header] + [parts[i] for i in order]
    front = sum(runs, [])
    assert any(len(sum(runs[:i], [])) % 32 for i in range(1, 5))
    tail = front[whole_blocks(len(front)):] + prompts.tail(QUESTION)  # what vLLM computes itself
    want = composed_by_hand(reference, [*runs[:-1], runs[-1][:len(runs[-1]) - len(front) % 32]], tail)
    got = server.complete(front + prompts.tail(QUESTION), salt=fresh_salt(), wish=inject(header, *(chunks[i] for i in order)), n=1)
    assert got.cached == whole_blocks(len(front))
    assert max(abs(want[token].item() - p) for token, p in got.steps[0].items()) < 0.35
    # The same chunks not moved would be far away: the test can tell.
    unmoved = composed_by_hand(reference, [prompts.header], front[len(prompts.header):] + prompts.tail(QUESTION))
    assert max(abs(unmoved[token].item() - p) for token, p in got.steps[0].items()) > 0.35


@pytest.fixture(scope="module")
def encoded(server, prompts):
    """The header, and each of 50 facts behind it and eight others."""
    primer = prompts.header + sum(prompts.facts[50:58], [])
    header = server.encode(prompts.header)
    return header, [server.encode(primer + fact, len(primer), "primed:8") for fact in prompts.facts[:50]]


@pytest.mark.parametrize("k", [0, 5, 20, 50])
def test_facts_one_by_one(server, prompts, encoded, k):
    header, facts = encoded
    front, tail = memory(prompts, k), prompts.tail(QUESTION)
    prefilled = server.complete(front + tail, salt=fresh_salt(), n=1)
    injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(header, *facts[:k]), n=1)
    assert prefilled.cached == 0
    assert injected.cached == whole_blocks(len(front))
    assert injected.tokens == prefilled.tokens  # nearly the same distribution, and this question's first token is a clear one


def test_local_prefix_and_injection(server, prompts, encoded):
    """A second question over the same memory finds the injected blocks; another salt does not."""
    header, facts = encoded
    front, salt = memory(prompts, 20), fresh_salt()
    wish = inject(header, *facts[:20])
    first = server.complete(front + prompts.tail(QUESTION), salt=salt, wish=wish)
    again = server.complete(front + prompts.tail(QUESTION), salt=salt)
    other = server.complete(front + prompts.tail(QUESTION), salt=fresh_salt())
    assert again.cached >= whole_blocks(len(front)) and again.tokens == first.tokens
    assert other.cached == 0
    longer = memory(prompts, 30)
    more = server.complete(longer + prompts.tail(QUESTION), salt=salt, wish=inject(header, *facts[:30]))
    assert more.cached == whole_blocks(len(longer)), "the first part is vLLM's own, the rest injected"
    alone = server.complete(longer + prompts.tail(QUESTION), salt=fresh_salt(), wish=inject(header, *facts[:30]))
    assert_same(more, alone)


def copy_of(server, chunk, change):
    """The chunk under a key that no worker has in memory, its bytes changed."""
    key, n = server.new_key(), chunk[1]
    server.file(key).write_bytes(change(server.file(chunk[0]).read_bytes()))
    return key, n


def flip(data):
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x40
    return bytes(changed)


FAULTS = {
    "missing": "",
    "broken": "is broken",
    "cut": "is broken",
    "no chunk at all": "is broken",
    "other tokens": "is of other tokens",
    "no key": "",
    "no salt": "without a cache_salt",
    "no sense": "are not what they must be",
    "too long": "are not what they must be",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_injected_is_computed(server, prompts, fault):
    """The answer is what vLLM computes without the connector's help, and the log says why."""
    front, tail = memory(prompts, 10), prompts.tail(QUESTION)
    half = len(memory(prompts, 5))
    first, second = server.encode(front[:half]), server.encode(front, half)
    right = server.complete(front + tail, salt=fresh_salt())
    wish, salt = inject(first, second), fresh_salt()
    if fault == "missing":  # the scheduler sees it
        server.file(second[0]).unlink()
    elif fault == "broken":
        wish = inject(first, copy_of(server, second, flip))
    elif fault == "cut":
        wish = inject(first, copy_of(server, second, lambda data: data[:-4096]))
    elif fault == "no chunk at all":
        wish = inject(first, copy_of(server, second, lambda data: b"not a chunk"))
    elif fault == "other tokens":
        other = server.encode(memory(prompts, 4), 0)
        wish = inject((other[0], half), second)
    elif fault == "no key":
        wish = inject(("f" * 16, len(front)))
    elif fault == "no salt":
        salt = None
    elif fault == "no sense":
        wish = {"inject": {"keys": 5, "lengths": "many"}}
    else:
        wish = {"inject": {"keys": first[0], "lengths": [1 << 30]}}
    before = len(server.output())
    got = server.complete(front + tail, salt=salt, wish=wish)
    assert FAULTS[fault] in server.output()[before:]
    assert got.tokens[0] == right.tokens[0]
    assert max(abs(p - right.steps[0][t]) for t, p in got.steps[0].items() if t in right.steps[0]) < 0.5


def test_a_forgotten_chunk_is_not_kept(server, prompts):
    """Its folder is gone when the worker comes to write it."""
    key = secrets.token_hex(8)
    server.complete(prompts.header, wish={"encode": {"key": key, "begin": 0, "tokens": 8, "recipe": "isolated"}}, n=1)
    assert f"chunk {key} is not made: chunk {key} has no folder" in server.output()
    assert not server.file(key).parent.exists()


def test_a_chunk_of_another_model_is_not_injected(server, prompts):
    """Its fingerprint differs, and both hashes are right."""
    front, tail = memory(prompts, 10), prompts.tail(QUESTION)
    chunk = server.encode(front)
    with Server(folder=server.folder, dtype="float16") as other:
        right = other.complete(front + tail, salt=fresh_salt())
        got = other.complete(front + tail, salt=fresh_salt(), wish=inject(chunk))
        assert "another model's" in other.output()
        assert other.describe()["fingerprint"] != server.describe()["fingerprint"]
        assert got.tokens[0] == right.tokens[0]


def test_what_a_planner_must_know(server, prompts):
    told = server.describe()
    assert re.fullmatch("[0-9a-f]{32}", told.pop("fingerprint"))
    control, marks = told.pop("control_tokens"), told.pop("marks")
    assert told == {"version": 3, "ranks": 1, "block_size": BLOCK, "why_not": ""}
    assert control == {token.content: number for number, token in prompts.tokenizer.added_tokens_decoder.items()}
    assert control["<|im_start|>"] == 1 and len(control) == 17
    assert marks == list(range(9, 17))  # <issue_comment> to <empty_output>
    for mark in marks:
        assert prompts.encode(f" a{prompts.decode([mark])} b ") == [*prompts.encode(" a"), mark, *prompts.encode(" b ")]


def test_a_server_that_cannot_inject_says_why(prompts):
    with Server(folder="/dev/null/chunks") as other:
        assert "cannot open the folder of chunks /dev/null/chunks" in other.describe()["why_not"]
        assert other.complete(prompts.header, salt=fresh_salt(), wish=inject(("f" * 16, len(prompts.header)))).cached == 0


class Tokens:
    """A tokenizer with these control tokens, by number; the first two are its ends."""

    def __init__(self, tokens, template, **named):
        self.added_tokens_decoder = {number: transformers.AddedToken(text, special=True, lstrip=text.startswith(" ")) for number, text in tokens.items()}
        self.chat_template = template
        self.all_special_tokens, self.all_special_ids = ["[more]"], [99]
        self.bos_token_id, self.eos_token_id = sorted(tokens)[:2]
        self.unk_token_id, self.pad_token_id = named.get("unk"), named.get("pad")


def test_marks_of_other_tokenizers():
    ends = {1: "<s>", 2: "</s>"}
    worker = SimpleNamespace(fingerprint="a", why_not="")

    def marks(tokenizer):
        return describe([worker], 1, 32, lambda: tokenizer)["marks"]

    assert marks(Tokens({**ends, 7: "<x>", 5: "<y>", 6: " <z>", 8: "<used>"}, "{{ '<used>' }}", pad=5)) == [7]
    assert marks(Tokens({**ends, 3: "<unk>", 4: "<pad>"}, {"default": "<pad>", "tools": ""}, unk=3, pad=4)) == [3]
    assert marks(Tokens(ends, None, unk=1, pad=2)) == []
    assert marks(Tokens({**ends, **{i: f"<{i}>" for i in range(300, 200, -1)}}, "")) == list(range(293, 301))
    assert marks(SimpleNamespace(all_special_tokens=["[INST]"], all_special_ids=[3])) == []
    assert describe([worker], 1, 32, lambda: Tokens(ends, ""))["control_tokens"] == {"<s>": 1, "</s>": 2, "[more]": 99}
    assert "cannot be used" in describe([worker], 1, 32, lambda: None)["why_not"]
    off = SimpleNamespace(fingerprint="a", why_not="off")
    assert describe([worker, off], 2, 32, lambda: Tokens(ends, ""))["why_not"] == "off"
    assert "same model" in describe([worker, SimpleNamespace(fingerprint="b", why_not="")], 2, 32, lambda: Tokens(ends, ""))["why_not"]


COUNTERS = ["injected_tokens", "inject_seconds", "failed_loads", "failed_load_tokens", "stored_chunks", "failed_stores"]


def moved(server, ask):
    """What asking adds to the connector's counters, which arrive a moment behind the reply."""
    before = {name: server.metric(f"inferscale_{name}_total") for name in COUNTERS}
    ask()
    time.sleep(1)
    after = {name: server.metric(f"inferscale_{name}_total") for name in COUNTERS}
    return {name: after[name] - before[name] for name in COUNTERS if after[name] != before[name]}


def test_counters(server, prompts):
    front, tail = memory(prompts, 10), prompts.tail(QUESTION)
    half = len(memory(prompts, 5))
    chunks = []
    assert moved(server, lambda: chunks.extend([server.encode(front[:half]), server.encode(front, half)])) == {"stored_chunks": 2}
    right = moved(server, lambda: server.complete(front + tail, salt=fresh_salt(), wish=inject(*chunks)))
    assert right.pop("inject_seconds") > 0
    assert right == {"injected_tokens": whole_blocks(len(front))}
    wish = inject(chunks[0], copy_of(server, chunks[1], flip))
    wrong = moved(server, lambda: server.complete(front + tail, salt=fresh_salt(), wish=wish))
    assert wrong.pop("inject_seconds") > 0
    assert wrong == {"injected_tokens": whole_blocks(half), "failed_loads": 1, "failed_load_tokens": whole_blocks(len(front)) - whole_blocks(half)}
    lost = {"encode": {"key": "e" * 16, "begin": 0, "tokens": 8}}
    assert moved(server, lambda: server.complete(front, wish=lost, n=1)) == {"failed_stores": 1}


def test_sixteen_users_at_once(server, prompts):
    """The same question over different memories, while facts of others are being encoded: nobody sees another's."""
    words = ["amber", "birch", "cedar", "daisy", "ebony", "fern", "grape", "hazel", "iris", "jade", "kelp", "lemon", "maple", "nutmeg", "olive",
             "pearl"]
    tail = prompts.tail("What is the password of the garden gate?") + prompts.encode("The password of the garden gate is \"")

    def user(number):
        http = requests.Session()
        own = prompts.fact("2025-05-01", f"The password of the garden gate is \"{words[number]}\".")
        parts = [prompts.header, *prompts.facts[number:number + 12], own]
        chunks = [server.encode(part, http=http) for part in parts]
        prompt, wish = sum(parts, []) + tail, inject(*chunks)
        return prompt, wish, server.complete(prompt, salt=fresh_salt(), wish=wish, n=4, http=http)

    right = 0
    for number, (prompt, wish, answer) in enumerate(at_once(len(words), user)):
        text = prompts.decode(answer.tokens).lower()
        assert answer.cached == whole_blocks(len(prompt) - len(tail))
        assert not any(word in text for i, word in enumerate(words) if i != number), (number, text)
        right += words[number] in text
        alone = server.complete(prompt, salt=fresh_salt(), wish=wish, n=1)
        assert alone.tokens[0] in answer.steps[0]
        assert max(abs(p - alone.steps[0][t]) for t, p in answer.steps[0].items() if t in alone.steps[0]) < 0.5
    assert right > len(words) / 2, "facts that were encoded alone: the small model does not see all of the passwords"
