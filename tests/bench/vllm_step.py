"""vllm_step.py FOLDER: beside ttft.json and throughput.json the steps that bench/vllm_*.py would keep, with other times."""

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
step = json.loads((folder / "throughput.json").read_text())
step.update(name="throughput, vLLM", command="bench/vllm_throughput.py -u 10")
step["result"].update(model="another", llama_cpp=None, peer=None, engine={"name": "vLLM", "version": "0.32.0"})
step["result"]["throughput"] = [{**row, "requests_per_s": 2 * row["requests_per_s"]} for row in step["result"]["throughput"] if row["system"] != "peer"]
for ratio in step["result"]["ratios"]:
    ratio.update(inject_over_peer=None)
(folder / "throughput, vLLM.json").write_text(json.dumps(step))
