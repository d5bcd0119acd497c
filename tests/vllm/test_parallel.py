"""Tensor parallelism: each rank keeps its own heads of a chunk, and a chunk is ready when all have."""

from common import Server, fresh_salt, inject, whole_blocks


def test_each_rank_has_its_part(prompts):
    front, tail = prompts.header + sum(prompts.facts[:20], []), prompts.tail("Where does Elke live?")
    with Server("--enable-prompt-tokens-details", ranks=3) as server:  # the model has nine heads, and three of KV
        server.complete(front + tail, salt="own", n=1)
        own = server.complete(front + tail, salt="own")
        chunk = server.encode(front + tail, end=len(front))
        assert len({server.file(chunk[0], rank).read_bytes() for rank in range(3)}) == 3
        injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(chunk))
        assert injected.cached == own.cached == whole_blocks(len(front))
        assert injected.tokens == own.tokens and injected.steps == own.steps
        assert server.describe()["ranks"] == 3

        server.file(chunk[0], 1).unlink()
        computed = server.complete(front + tail, salt=fresh_salt(), wish=inject(chunk))
        assert computed.cached == 0 and computed.tokens == own.tokens
