"""A server whose cache is too small for all who ask, without prefix caching: requests are preempted and resumed."""

import requests

from common import BLOCK, Server, at_once, fresh_salt, inject, whole_blocks

USERS = 8
ANSWER = 96
WORDS = ["amber", "birch", "cedar", "daisy", "ebony", "fern", "grape", "hazel"]


def preemptions(server):
    return server.metric("num_preemptions_total")


def test_preempted_requests_get_their_memory_again(prompts):
    tail = prompts.tail("What is the password of the garden gate?") + prompts.encode("The password of the garden gate is \"")
    parts = [[prompts.header, *prompts.facts[n:n + 20], prompts.fact("2025-05-01", f"The password of the garden gate is \"{WORDS[n]}\".")]
             for n in range(USERS)]
    longest = max(len(sum(p, []) + tail) for p in parts)
    blocks = 4 * (longest // BLOCK + 1) + 6  # four prompts, and hardly anything for their answers; one is never used
    with Server("--no-enable-prefix-caching", "--num-gpu-blocks-override", str(blocks), "--max-num-batched-tokens", "256", "--max-model-len", "1024",
                "--enable-prompt-tokens-details") as server:
        chunks = {}
        for part in sum(parts, []):
            if tuple(part) not in chunks:
                chunks[tuple(part)] = server.encode(part)

        def ask(n, http=None):
            wish = inject(*(chunks[tuple(part)] for part in parts[n]))
            return server.complete(sum(parts[n], []) + tail, salt=fresh_salt(), wish=wish, n=ANSWER, http=http)

        alone = [ask(n) for n in range(USERS)]
        assert preemptions(server) == 0
        together = at_once(USERS, lambda n: ask(n, requests.Session()))
        assert preemptions(server) > 0
        for n in range(USERS):
            assert alone[n].cached == whole_blocks(len(sum(parts[n], [])))
            # Beside others bfloat16 rounds otherwise, so long answers part; the memory is at their beginning.
            assert together[n].tokens[:2] == alone[n].tokens[:2]
            assert not any(word in prompts.decode(together[n].tokens[:8]).lower() for word in WORDS if word != WORDS[n])
            assert len(together[n].tokens) == ANSWER
