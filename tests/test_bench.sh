#!/usr/bin/env bash
#
# The benchmarks of the evaluation, on a small conversation in LoCoMo's form: what they count, that a run goes on where
# it was cut short, what they say when something is wrong, and the report.  Nothing here looks at a time.
#
#   INFERSCALE_BIN, INFERSCALE_CHAT_MODEL, INFERSCALE_EMBEDDING_MODEL   as in test_cli.sh
#   INFERSCALE_TEST_VENV                                                Python with selenium, for the page
#
# shellcheck disable=SC2016 # what Python is given is not for the shell

set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(realpath "${INFERSCALE_BIN:-$root/build/inferscale}")
data=$root/tests/bench/conversation.json
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work" || exit 1
export INFERSCALE_MODEL=$INFERSCALE_CHAT_MODEL HOME=$work/home
unset XDG_CACHE_HOME XDG_DATA_HOME INFERSCALE_CACHE INFERSCALE_STORE INFERSCALE_PEER
# shellcheck source=tests/checks.sh
source "$root/tests/checks.sh"

# bench NAME OPTIONS...: output in out and err, the exit code in rc.
bench() {
    "$bin" bench "$@" --quiet --threads 1 >out 2>err </dev/null
    rc=$?
}

complains() { grep -qF -- "$1" err out; }
# json CONDITION: of d, what was printed.
json() { python3 "$root/tests/bench/check.py" out "$1" 2>>err; }

# --- recall ---------------------------------------------------------------------------------------------------------

bench recall --data "$data" -k 1 -k 7 --json
is 'recall: exit code' exits 0
# Seven facts are all of them, and every turn that an answer stands in is one that a fact was drawn from.
is 'recall: all facts find all' json 'all(r["turns_found"] == r["all_found"] == 1 for r in d["recall"] if r["k"] == 7)'
# Of two turns in one piece of evidence ("D3:1; D2:3") both count, so one fact can hold all of it or half.
is 'recall: five questions' json 'all(r["questions"] == 5 for r in d["recall"]) and len(d["recall"]) == 6'
is 'recall: one fact finds less' json 'all(r["turns_found"] < 1 for r in d["recall"] if r["k"] == 1)'
is 'recall: parts of evidence count' json 'any(r["turns_found"] > r["all_found"] for r in d["recall"] if r["k"] == 1)'
bench recall --data "$root/data/sample/conversation.jsonl" -k 50 --json # whose facts have one source each
is 'recall of JSON Lines' json 'all(r["turns_found"] > 0.5 for r in d["recall"])'
echo '[{"question": "What is the name of the dog?", "answer": "Rex"}]' >bare.json
bench recall --data "$root/data/sample/conversation.jsonl" --questions bare.json
is 'recall without evidence: exit code' exits 1
is 'recall without evidence: says why' complains "the data does not say which turns the answers stand in"

# --- answers --------------------------------------------------------------------------------------------------------

answers=(answers --data "$data" -k 4 --work answers --with-recipe primed:2 --json)
bench "${answers[@]}" --limit 3
is 'answers: exit code' exits 0
is 'answers: text and injected' json '[a["name"] for a in d["answers"]] == ["text", "primed:2"]'
is 'answers: three questions' json 'all(a["questions"] == 3 for a in d["answers"])'
is 'answers: categories' json 'set(d["answers"][0]["by_category"]) == {"single-hop", "temporal", "open-domain"}'
is 'answers: the text differs by nothing from itself' json 'd["answers"][0]["f1_against_text"] == {"mean": 0, "low": 0, "high": 0}'
is 'answers: the difference' json 'near(d["answers"][1]["f1"]["mean"] - d["answers"][0]["f1"]["mean"], d["answers"][1]["f1_against_text"]["mean"])'
# Goes on: what was answered is not asked again, so a changed answer stays; a line that was cut short is.
notes=$(wc -l <answers/journal.jsonl)
python3 "$root/tests/bench/spoil.py" answers/journal.jsonl
bench "${answers[@]}"
is 'answers, on from before: exit code' exits 0
is 'answers, on from before: all five' json 'all(a["questions"] == 5 for a in d["answers"])'
is 'answers, on from before: what was there is taken' json 'by(d["answers"], "text")["by_category"]["single-hop"]["f1"]["high"] == 0.987'
is 'answers, on from before: four more notes and the lost one' [ "$(wc -l <answers/journal.jsonl)" -eq $((notes + 4)) ]
is 'answers: a table' "$bin" bench answers --data "$data" -k 4 --work answers --with-recipe primed:2 --quiet
bench answers --data "$data" -k 4 --with-recipe primed:2 --adversarial --json
is 'adversarial: one question' json 'd["answers"][0]["by_category"]["adversarial"]["questions"] == 1'
bench "${answers[@]}" --data "$root/data/sample/conversation.jsonl"
is 'other data: exit code' exits 1
is 'other data: says so' complains 'was begun with other data'
(
    exec 9<>answers/journal.jsonl
    flock 9
    bench "${answers[@]}"
    cp out out.locked
    echo "$rc" >rc.locked
)
rc=$(cat rc.locked)
is 'in use: exit code' exits 1
is 'in use: says so' grep -qF 'is in use by another run' out.locked
bench answers --data "$data" --with-recipe primed:65
is 'no recipe: exit code' exits 1
is 'no recipe: says what there is' complains 'primed:N+window:W'
bench answers --data nowhere.json
is 'no data: exit code' exits 1

# --- a judge --------------------------------------------------------------------------------------------------------

"$bin" serve --store judge --port 0 --threads 1 >serve.out 2>serve.err &
server=$!
for _ in $(seq 600); do
    url=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' serve.out serve.err | head -n 1)
    url=${url#*:}
    [ -z "$url" ] || break
    sleep 0.1
done
printf 'Say nothing but the word CORRECT. Question: {question} Right: {gold} Answer: {answer}\n' >prompt.txt
bench "${answers[@]}" --judge "$url" --judge-prompt prompt.txt
if exits 0; then # the small model obeys, or the bench says that it did not
    is 'judge: a share' json 'all(0 <= a["judge"] <= 1 for a in d["answers"])'
    is 'judge: verdicts are kept' grep -q '"key":"verdict ' answers/journal.jsonl
else
    is 'judge: says what it heard' complains 'neither CORRECT nor WRONG'
fi
printf 'Judge! {question} {answer}\n' >prompt.txt
bench "${answers[@]}" --judge "$url" --judge-prompt prompt.txt
is 'judge, a prompt without the right answer' complains '{gold}'
bench "${answers[@]}" --judge "$url/nowhere" --judge-prompt "$root/bench/judge.txt"
is 'judge, no such path: exit code' exits 1
is 'judge, no such path: says so' complains 'HTTP 404'
kill "$server"
wait "$server"
server=
bench "${answers[@]}" --judge "$url" --judge-prompt "$root/bench/judge.txt"
is 'no judge: exit code' exits 1

# --- fidelity -------------------------------------------------------------------------------------------------------

bench fidelity --data "$data" -k 5 --work fidelity --with-recipe isolated --with-recipe primed:3 --fresh 0 --fresh 5 --json
is 'fidelity: exit code' exits 0
is 'fidelity: four rows' json '[(f["recipe"], f["fresh"]) for f in d["fidelity"]] == [("isolated", 0), ("isolated", 5), ("primed:3", 0), ("primed:3", 5)]'
is 'fidelity: all fresh is near the full prefill' json 'max(f["kl"] for f in d["fidelity"] if f["fresh"] == 5) < 0.02'
is 'fidelity: isolated is far' json 'd["fidelity"][0]["kl"] > 5 * d["fidelity"][1]["kl"]'
is 'fidelity: places' json 'all(sum(p["questions"] for p in f["by_place_of_evidence"]) == f["questions"] == 5 for f in d["fidelity"])'
is 'fidelity: one full prefill a question' [ "$(find fidelity/reference -type f | wc -l)" -eq 5 ]
cp out first
bench fidelity --data "$data" -k 5 --work fidelity --with-recipe isolated --with-recipe primed:3 --fresh 0 --fresh 5 --json
is 'fidelity, again: the same' cmp -s first out
for order in best-first age; do
    bench fidelity --data "$data" -k 5 --work fidelity --with-recipe isolated --order "$order" --json
    is "fidelity, $order: said" json 'd["order"] == "'"$order"'" and d["fidelity"][0]["questions"] == 5'
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["fidelity"][0]["nll_full"])' out >"$order"
done
bench fidelity --data "$data" -k 5 --work fidelity --with-recipe isolated --json
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["fidelity"][0]["nll_full"])' out >best-last
is 'fidelity, orders: other prompts' [ "$(sort -u best-last best-first age | wc -l)" -eq 3 ]
bench fidelity --data "$data" --order rank
is 'fidelity, an order that is none: wrong usage' exits 2
is 'fidelity, an order that is none: says which there are' complains '--order rank: there are best-last, best-first and age'

# --- all of it ------------------------------------------------------------------------------------------------------

# Steps that are there by the same command are not run again, so the long ones are put there.
put_step() { # NAME COMMAND
    echo "{\"name\": \"$1\", \"command\": \"inferscale bench $2 --data $(basename "$data") --model $(basename "$INFERSCALE_MODEL") --embedding-model $(basename "$INFERSCALE_EMBEDDING_MODEL") --threads 1\", \"seconds\": 1, \"result\": $(cat "$root/bench/results/$1.json")}" >"evaluation/steps/$1.json"
}
mkdir -p evaluation/steps
put_step ttft 'ttft -k 5 -k 10 -k 20 -k 50 --limit 2 --repeat 1 --history'
put_step throughput 'throughput -u 10 -u 25 --facts 55 --limit-prefill 2 --slots 8'
python3 "$root/tests/bench/vllm_step.py" evaluation/steps
bench locomo --data "$data" --out evaluation --json
is 'locomo: exit code' exits 0
is 'locomo: the steps' json '[s["name"] for s in d["steps"]] == ["ttft", "ttft, vLLM", "throughput", "throughput, vLLM", "recall", "fidelity", "answers", "encode"]'
is 'locomo: what was there is as it was' json '[s["seconds"] == 1 for s in d["steps"] if s["name"] in ("ttft", "throughput")] == [True, True]'
is 'locomo: commands name no folder' json 'all("/" not in s["command"].removeprefix("bench/") and "--work" not in s["command"] for s in d["steps"])'
is 'locomo: the paper' json 'd["paper"]["ttft"]["k"] == [5, 10, 20, 50]'
is 'locomo: CSV' python3 "$root/tests/bench/check.py" evaluation/report.json 'csv("evaluation/fidelity.csv")[0]["recipe"] == "isolated" and len(csv("evaluation/answers.csv")) == 3'
is 'locomo: CSV of both engines' python3 "$root/tests/bench/check.py" evaluation/report.json 'all(float(v["speedup"]) > 2 * float(o["speedup"]) for v, o in zip(csv("evaluation/ttft, vLLM.csv"), csv("evaluation/ttft.csv"), strict=True))'
bench locomo --data "$data" --out evaluation --limit 3 --with-recipe primed:2 --with-recipe isolated --json
is 'locomo, fewer questions: exit code' exits 0
is 'locomo, fewer questions: only where there were more' json '[s["seconds"] == 1 for s in d["steps"] if s["name"] in ("ttft", "throughput")] == [True, True]'
is 'locomo, fewer questions: taken' json 'all("--limit 3 " in s["command"] for s in d["steps"][5:7]) and {f["questions"] for f in d["steps"][5]["result"]["fidelity"] + d["steps"][6]["result"]["answers"]} == {3}'
is 'locomo, other recipes: taken, in their order' json '[r["recipe"] for r in d["steps"][5]["result"]["fidelity"]] == ["primed:2", "primed:2", "isolated", "isolated"] and [r["recipe"] for r in d["steps"][7]["result"]["encode"]] == ["primed:2", "isolated"]'
is 'locomo, other recipes: the command says so' json 'd["steps"][6]["command"].startswith("inferscale bench answers --limit 3 --with-recipe primed:2 --with-recipe isolated --data")'
bench locomo --data "$data" --out evaluation --with-recipe primed:none --json
is 'locomo, a recipe that is none: exit code' exits 1
is 'locomo, a recipe that is none: the step says so itself' complains 'step fidelity failed: \"primed:none\" is no recipe'
INFERSCALE_EMBEDDING_MODEL='' bench locomo --data "$data" --out evaluation --json
is 'locomo without an embedding model: exit code' exits 3
is 'locomo without an embedding model: at once' complains 'there is no embedding model at'
INFERSCALE_EMBEDDING_MODEL='' bench "${answers[@]}"
is 'another search in the same folder: exit code' exits 1
is 'another search in the same folder: says so' complains 'for searching, and now it is words; give another --work'
export INFERSCALE_REPORT=$work/evaluation/report.html
"$INFERSCALE_TEST_VENV/bin/python" "$root/tests/web/test_report.py" --folder shots >out 2>err
rc=$?
is 'locomo: the page' exits 0

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
