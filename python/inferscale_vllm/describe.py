"""What a planner of prompts must know of this engine: its model, its cache, and the tokens that are no text."""

VERSION = 3
MAX_MARKS = 8


def control_tokens(tokenizer) -> dict[str, int]:
    """The tokens that a text must not become, by what they look like."""
    found = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids))
    found.update((token.content, number) for number, token in added_tokens(tokenizer).items() if token.special)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def added_tokens(tokenizer) -> dict:
    return getattr(tokenizer, "added_tokens_decoder", {})


def marks(tokenizer, control: dict[str, int]) -> list[int]:
    """Control tokens that can stand for a text while a chat template is filled in: they take nothing of the text beside them away,
    and the template has none of its own."""
    template = getattr(tokenizer, "chat_template", None) or ""
    template = "".join(template.values()) if isinstance(template, dict) else template
    ends, fillers = ({getattr(tokenizer, f"{name}_token_id", None) for name in names} for names in (("bos", "eos"), ("unk", "pad")))
    able = [number for number, token in sorted(added_tokens(tokenizer).items())
            if token.content in control and not (token.lstrip or token.rstrip or token.single_word) and token.content not in template]
    found = [number for number in able if number not in ends | fillers] or [number for number in able if number in fillers - ends]
    return found[-MAX_MARKS:]


def describe(workers, ranks: int, block_size: int, load_tokenizer) -> dict:
    """workers: what each of them said at start."""
    why_not = next((worker.why_not for worker in workers if worker.why_not), "")
    fingerprints = {worker.fingerprint for worker in workers}
    if len(fingerprints) != 1:
        why_not = why_not or "injection is off: the workers do not have the same model"
    control, able = {}, []
    try:
        tokenizer = load_tokenizer()
        control = control_tokens(tokenizer)
        able = marks(tokenizer, control)
    except Exception as error:  # whatever it is, it must not stop the engine
        why_not = why_not or f"the tokenizer cannot be used: {error!r}"
    return {"version": VERSION, "fingerprint": min(fingerprints, default=""), "ranks": ranks, "block_size": block_size, "why_not": why_not,
            "control_tokens": control, "marks": able}
