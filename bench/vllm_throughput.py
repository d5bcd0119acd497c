#!/usr/bin/env python3
"""Requests a second through vLLM under load: what `inferscale bench throughput` measures on llama.cpp, in the same JSON."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from vllm_step import SAMPLE, about, begin, end

EXAMPLES = """\
A vLLM server is started, and `inferscale bench throughput --engine vllm` measures it through a server in front of it: with memory
injected, and with the same facts as text, which vLLM's own prefix cache serves as far as it can. Other options are that benchmark's.

  scripts/setup.sh --vllm && make build/libinferscale-connector.so build/inferscale
  bench/vllm_throughput.py -u 10 -u 25 --facts 55
  bench/vllm_throughput.py --data locomo10.json --out build/evaluation
  inferscale bench locomo --data locomo10.json --full --out build/evaluation     its report then shows both engines
"""


def run(chosen):
    from common import Server
    from gateway import BIN

    print("starting vLLM", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as store, \
            Server("--enable-prompt-tokens-details", folder=f"{store}/chunks") as server:
        ground = about(server)
        words = [BIN, "bench", "throughput", *chosen.more, "--engine", "vllm", "--upstream", server.url, "--store", store, "--data", chosen.data, "--json"]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)
        return {**json.loads(done.stdout), **ground}


def main():
    options = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=pathlib.Path, default=SAMPLE, help="LoCoMo's file, or JSON Lines with questions.json beside them (the bundled sample)")
    options.add_argument("--out", type=pathlib.Path, help="the folder of `inferscale bench locomo`, which puts the result into its report (without: to stdout)")
    chosen, chosen.more = options.parse_known_args()
    begin()
    end("throughput", chosen.more, chosen, run)


if __name__ == "__main__":
    main()
