"""A cache of 8 bits: all that holds of one of 16 holds, with what the engine rounds."""

import re

import pytest

from common import BLOCK, Server, fresh_salt, inject, whole_blocks
from test_connector import QUESTION, memory, test_whole_prompt_at_its_own_place_is_exact, test_whole_prompt_in_pieces_is_exact


@pytest.fixture(scope="module")
def server():
    with Server("--kv-cache-dtype", "fp8", "--enable-prompt-tokens-details") as s:
        yield s
        assert re.search(r"blocks of %d tokens of torch.float8_e4m3fn" % BLOCK, s.output()) and "injection is off" not in s.output()


def test_moved_chunks_answer_as_prefilled_text_does(server, prompts):
    """Behind another header's length: K is rounded to 8 bits once more than where it was made."""
    primer = prompts.header + sum(prompts.facts[50:58], [])
    header = server.encode(prompts.header)
    facts = [server.encode(primer + fact, len(primer), "primed:8") for fact in prompts.facts[:20]]
    front, tail = memory(prompts, 20), prompts.tail(QUESTION)
    prefilled = server.complete(front + tail, salt=fresh_salt(), n=1)
    injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(header, *facts), n=1)
    assert injected.cached == whole_blocks(len(front))
    assert injected.tokens == prefilled.tokens
