"""vllm_step.py FOLDER: beside ttft.json the step that bench/vllm_ttft.py would keep, with other times."""

import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
step = json.loads((folder / "ttft.json").read_text())
step.update(name="ttft, vLLM", command="bench/vllm_ttft.py -k 50")
step["result"].update(model="another", llama_cpp=None, engine={"name": "vLLM", "version": "0.32.0"})
for row in step["result"]["ttft"]:
    row.update(prefill_ttft_ms=3 * row["prefill_ttft_ms"], speedup=3 * row["speedup"], fetch_ms=None)
(folder / "ttft, vLLM.json").write_text(json.dumps(step))
