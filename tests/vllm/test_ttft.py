"""bench/vllm_ttft.py on a small conversation, beside the same on llama.cpp: one reader must do for both. Nothing here looks at a time."""

import json
import subprocess
import sys

from common import ROOT, whole_blocks
from gateway import BIN


def test_step_of_the_evaluation(tmp_path):
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
