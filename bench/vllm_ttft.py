#!/usr/bin/env python3
"""Time to the first token through vLLM's server: 50 facts prefilled, found in vLLM's own prefix cache, and injected.

    scripts/setup.sh --vllm && make build/libinferscale-connector.so build/inferscale
    bench/vllm_ttft.py > bench/results/vllm-ttft.json

They take turns on one server, each time with another question, and each question is asked twice of the prefix cache so
that the second finds it warm, which is the least that the engine itself needs. Then the same facts are asked about
through `inferscale serve --engine vllm`, prefilled and injected: there the time has the search for the facts in it, and
the plan. Times are a client's over HTTP.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/vllm"))


def settings():
    """Where scripts/setup.sh put Python and model."""
    lines = (ROOT / "build/vllm.mk").read_text().splitlines()
    return dict(line.split(" := ") for line in lines)


def first_token_ms(server, tokens, salt, wish=None):
    body = {"model": "model", "prompt": tokens, "max_tokens": 2, "temperature": 0, "stream": True, "cache_salt": salt, "ignore_eos": True}
    if wish:
        body["kv_transfer_params"] = {"inferscale": wish}
    begun = time.perf_counter()
    with server.http.post(server.url + "/v1/completions", json=body, stream=True, timeout=900) as reply:
        for line in reply.iter_lines():
            if line.startswith(b"data: {"):
                took = (time.perf_counter() - begun) * 1e3
                break
        for _ in reply.iter_lines():
            pass
    return took


def gateway_first_token_ms(gateway, question, k, mode):
    """Of one choice, of a user without a cache of that question's facts."""
    body = {"user": "bench", "messages": [{"role": "user", "content": question}], "max_tokens": 2, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "inferscale": {"k": k, "mode": mode}}
    begun = time.perf_counter()
    took, about = None, None
    with gateway.http.post(gateway.url + "/v1/chat/completions", json=body, stream=True, timeout=900) as reply:
        for line in reply.iter_lines():
            if took is None and b'"content":"' in line and b'"content":""' not in line:
                took = (time.perf_counter() - begun) * 1e3
            if b'"inferscale"' in line:
                about = json.loads(line[6:])["inferscale"]
    return took, about


def measure_gateway(server, chosen, questions):
    """Each question once a mode, in a store of its own: what vLLM's prefix cache has of one question is of no use to another."""
    from gateway import Gateway

    lines = [json.loads(line) for line in (ROOT / "data/sample/conversation.jsonl").read_text().splitlines()]
    facts = [{"text": x["text"], "time": x["time"]} for x in lines if x["type"] == "fact"]
    times = {"prefill": [], "inject": []}
    with Gateway([server.url], pathlib.Path(server.folder).parent) as gateway:
        gateway.add("bench", facts)
        for i, question in enumerate(questions[:chosen.repeat + 1]):
            for mode in times:
                took, about = gateway_first_token_ms(gateway, question, chosen.k, mode)
                cached = about["tokens_injected"]
                print(f"gateway: {mode} {took:.0f} ms, {cached} tokens injected, {about['tokens_prefilled']} prefilled", file=sys.stderr)
                if i > 0:
                    times[mode].append(took)
    return {mode: statistics.median(values) for mode, values in times.items()}


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("-k", type=int, default=50, help="facts in the prompt (50)")
    options.add_argument("--repeat", type=int, default=10, help="times that each way is measured (10)")
    chosen = options.parse_args()
    found = settings()
    if os.environ.get("INFERSCALE_HF_MODEL") is None:
        os.environ["INFERSCALE_HF_MODEL"] = found["HF_MODEL"]
        os.execv(found["VLLM_VENV"] + "/bin/python", [found["VLLM_VENV"] + "/bin/python", *sys.argv])
    from common import Server, fresh_salt, inject
    from conftest import Prompts

    import vllm

    prompts = Prompts()
    questions = [q["question"] for q in json.loads((ROOT / "data/sample/questions.json").read_text())]
    k = chosen.k
    front = prompts.header + sum(prompts.facts[:k], [])
    times = {"prefill": [], "resident": [], "inject": [], "connector": []}
    store = tempfile.mkdtemp(prefix="inferscale-bench-")
    with Server("--enable-prompt-tokens-details", log_level="DEBUG", folder=f"{store}/chunks") as server:
        primer = prompts.header + sum(prompts.facts[k:k + 8], [])
        chunks = [server.encode(prompts.header)]
        begun = time.perf_counter()
        chunks += [server.encode(primer + fact, len(primer), "primed:8") for fact in prompts.facts[:k]]
        encode_s = time.perf_counter() - begun
        for i in range(chosen.repeat + 1):  # the first one warms up
            tokens = front + prompts.tail(questions[i % len(questions)])
            salt = fresh_salt()
            prefill = first_token_ms(server, tokens, salt)
            resident = first_token_ms(server, tokens, salt)
            before = len(server.output())
            injected = first_token_ms(server, tokens, fresh_salt(), inject(*chunks))
            own = re.findall(r"tokens injected in ([0-9.]+) ms", server.output()[before:])
            print(f"prefilled {prefill:.0f} ms, resident {resident:.0f} ms, injected {injected:.0f} ms, of it the connector {own[0]} ms", file=sys.stderr)
            if i > 0:
                for name, ms in (("prefill", prefill), ("resident", resident), ("inject", injected), ("connector", float(own[0]))):
                    times[name].append(ms)
        gateway = measure_gateway(server, chosen, questions)
    shutil.rmtree(store)
    median = {name: statistics.median(values) for name, values in times.items()}
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in pathlib.Path("/proc/cpuinfo").read_text()]
    print(json.dumps({
        "engine": f"vLLM {vllm.__version__}", "model": "SmolLM2-135M-Instruct bfloat16", "cores": len(os.sched_getaffinity(0)), "features": features,
        "k": k, "memory_tokens": len(front), "repeat": chosen.repeat, "prefill_ttft_ms": median["prefill"], "resident_ttft_ms": median["resident"],
        "inject_ttft_ms": median["inject"], "connector_ms": median["connector"], "speedup": median["prefill"] / median["inject"],
        "above_resident_ms": median["inject"] - median["resident"], "encode_facts_per_s": k / encode_s,
        "gateway_prefill_ttft_ms": gateway["prefill"], "gateway_inject_ttft_ms": gateway["inject"],
        "gateway_speedup": gateway["prefill"] / gateway["inject"],
    }, indent=2))


if __name__ == "__main__":
    main()
