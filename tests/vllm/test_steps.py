"""bench/vllm_ttft.py and vllm_throughput.py on a small conversation, beside the same on llama.cpp: one reader must do for both. Nothing here looks at a time."""

import json
import subprocess
import sys

from common import BLOCK, ROOT, Server, whole_blocks
from gateway import BIN


def test_time_to_first_token(tmp_path):
    words = ["-k", "3", "--limit", "1", "--repeat", "1", "--data", ROOT / "tests/bench/conversation.json"]
    own = json.loads(subprocess.run([BIN, "bench", "ttft", *words, "--history", "--json", "--quiet"], check=True, stdout=subprocess.PIPE).stdout)
    subprocess.run([sys.executable, ROOT / "bench/vllm_ttft.py", *words, "--out", tmp_path], check=True)
    step = json.loads((tmp_path / "steps/ttft, vLLM.json").read_text())
    result = step["result"]
    assert list(step) == ["name", "command", "seconds", "result"] and step["name"] == "ttft, vLLM"
    assert step["command"] == "bench/vllm_ttft.py -k 3 --limit 1 --repeat 1 --data conversation.json"
    assert set(result) == {*own, "engine"} and result["engine"]["name"] == "vLLM"
    (row,), (row_of_own,) = result["ttft"], own["ttft"]
    assert set(row) == set(row_of_own) and row["k"] == 3
    # The same model's tokenizer and the same prompt, of which vLLM takes whole blocks.
    assert row["memory_tokens"] == whole_blocks(int(row_of_own["memory_tokens"])) > 0
    assert row["memory_tokens"] + row["tail_tokens"] == row_of_own["memory_tokens"] + row_of_own["tail_tokens"]
    assert all(result["history"][key] == own["history"][key] for key in ("conversation_tokens", "prompt_tokens"))


def test_throughput(tmp_path):
    words = ["-u", "2", "-u", "3", "-k", "3", "--facts", "4", "--tokens", "4", "--questions-per-user", "1", "--slots", "2", "--limit-prefill", "2"]
    data = ["--data", ROOT / "tests/bench/conversation.json"]
    own = json.loads(subprocess.run([BIN, "bench", "throughput", *words, *data, "--json", "--quiet"], check=True, stdout=subprocess.PIPE).stdout)
    subprocess.run([sys.executable, ROOT / "bench/vllm_throughput.py", *words, *data, "--out", tmp_path], check=True)
    step = json.loads((tmp_path / "steps/throughput, vLLM.json").read_text())
    result = step["result"]
    assert step["command"] == f"bench/vllm_throughput.py {' '.join(words)} --data conversation.json"
    assert set(result) == {*own, "engine"} and result["peer"] is None
    assert [(row["users"], row["system"], row["requests"], row["errors"]) for row in result["throughput"]] == [
        (2, "inject", 2, 0), (2, "prefill", 2, 0), (3, "inject", 3, 0), (3, "prefill", 2, 0)]
    for row, row_of_own in zip(result["throughput"], own["throughput"], strict=True):
        assert set(row) == set(row_of_own) and row["output_tokens_mean"] == 4
        # The same prompts, of which injection leaves less than a block and the question.
        assert row["prompt_tokens_mean"] == row_of_own["prompt_tokens_mean"]
        if row["system"] == "inject":
            assert row["prefilled_tokens_mean"] < row_of_own["prefilled_tokens_mean"] + BLOCK


def test_commands_on_vllm(tmp_path):
    """A store that is filled and asked by commands, with a vLLM that has its chunks."""

    def run(*words, code=0):
        done = subprocess.run([BIN, *words, "--engine", "vllm", "--upstream", server.url, "--store", tmp_path, "--json"], stdout=subprocess.PIPE, check=False)
        assert done.returncode == code, (words, done.stdout)
        return json.loads(done.stdout)

    with Server("--enable-prompt-tokens-details", folder=f"{tmp_path}/chunks") as server:
        added = run("add", *(f"The {name} key hangs on hook {i}, beside the door of the {name}." for i, name in enumerate(("cellar", "garage", "attic", "boat"))))
        assert added["encoded"] == 4
        asked, read = (run("ask", "On which hook is the attic key?", "--mode", mode, "--max-tokens", "8") for mode in ("inject", "prefill"))
        assert len(asked["facts"]) == 4 and all(fact["state"] == "ready" for fact in asked["facts"])
        assert asked["tokens"]["injected"] >= BLOCK and read["tokens"]["injected"] == 0
        assert "hook" in asked["answer"]
        assert run("doctor")["system"]["engine"]["engine"] == "vllm"
        run("bench", "answers", code=2)
