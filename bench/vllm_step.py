"""What the benchmarks of vLLM share: Python and model that scripts/setup.sh made, and a result as a step of `inferscale bench locomo`."""
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "data/sample/conversation.jsonl"
sys.path.insert(0, str(ROOT / "tests/vllm"))


def begin():
    """Goes on in the Python that has vLLM in it."""
    lines = (ROOT / "build/vllm.mk").read_text().splitlines()
    found = dict(line.split(" := ") for line in lines)
    os.environ.setdefault("INFERSCALE_HF_MODEL", found["HF_MODEL"])
    if pathlib.Path(sys.prefix) != pathlib.Path(found["VLLM_VENV"]):
        os.execv(found["VLLM_VENV"] + "/bin/python", [found["VLLM_VENV"] + "/bin/python", *sys.argv])


def about(server):
    """What stands in every result of `inferscale bench` but its version and fingerprint, and the engine. Its own program tells of the machine."""
    from gateway import BIN

    doctor = subprocess.run([BIN, "doctor", "--store", pathlib.Path(server.folder) / "none", "--json"], stdout=subprocess.PIPE, check=False)
    version = server.http.get(server.url + "/version").json()["version"]
    model = pathlib.Path(os.environ["INFERSCALE_HF_MODEL"]).name.removesuffix("-hf")
    return {"machine": json.loads(doctor.stdout)["machine"], "model": f"{model} bfloat16", "llama_cpp": None, "threads": len(os.sched_getaffinity(0)),
            "engine": {"name": "vLLM", "version": version}}


def end(name, words, chosen, run):
    """Runs the benchmark; its result goes to stdout, or whole or not at all into the folder --out, with its command without folders of this machine."""
    begun = time.monotonic()
    result = run(chosen)
    if not chosen.out:
        print(json.dumps(result, indent=2))
        return
    command = " ".join(["bench/" + pathlib.Path(sys.argv[0]).name, *(pathlib.Path(str(word)).name for word in words)])
    if chosen.data != SAMPLE:
        command += f" --data {chosen.data.name}"
    folder = chosen.out / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}, vLLM.part"  # a name that src/cli/bench_report.c looks for
    part.write_text(json.dumps({"name": f"{name}, vLLM", "command": command, "seconds": time.monotonic() - begun, "result": result}, indent=1))
    part.rename(folder / f"{name}, vLLM.json")
