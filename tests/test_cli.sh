#!/usr/bin/env bash
#
# The real program, from the outside: every command in a store of its own, what it prints, its exit codes, and what it
# says when something is wrong.
#
#   INFERSCALE_BIN              the program (default: build/inferscale)
#   INFERSCALE_CHAT_MODEL       GGUF of a chat model
#   INFERSCALE_EMBEDDING_MODEL  GGUF of an embedding model
#
# Prints what failed and ends with "N passed, M failed".
#
# shellcheck disable=SC2016 # the backquotes in messages are backquotes

# Ctrl-C is tried, and who starts this in the background has it ignored, which is inherited.
[ "${SIGNALS_ARE_RESET:-}" ] || exec env --default-signal=INT SIGNALS_ARE_RESET=yes bash "$0" "$@"

set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(realpath "${INFERSCALE_BIN:-$root/build/inferscale}")
work=$(mktemp -d)
trap 'chmod -R u+rwX "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1

[ -x "$bin" ] || { echo "no program at $bin; set INFERSCALE_BIN"; exit 1; }
[ -r "${INFERSCALE_CHAT_MODEL:-}" ] || { echo "INFERSCALE_CHAT_MODEL names no file"; exit 1; }
[ -r "${INFERSCALE_EMBEDDING_MODEL:-}" ] || { echo "INFERSCALE_EMBEDDING_MODEL names no file"; exit 1; }

# One thread each: the engine's threads wait by spinning, which on a busy machine costs more than a second one brings.
export INFERSCALE_MODEL=$INFERSCALE_CHAT_MODEL INFERSCALE_STORE=$work/store
export HOME=$work/home
unset XDG_CACHE_HOME XDG_DATA_HOME INFERSCALE_CACHE
one=(--threads 1)

# shellcheck source=tests/checks.sh
source "$root/tests/checks.sh"

# run ARGUMENTS...: the program's output in the files out and err, its exit code in rc.
run() {
    "$bin" "$@" >out 2>err </dev/null
    rc=$?
}

# shellcheck disable=SC2317 # these are called by name
says() { grep -qF -- "$1" out; }
# shellcheck disable=SC2317
complains() { grep -qF -- "$1" err; }
# shellcheck disable=SC2317
silent() { [ ! -s out ]; }
# shellcheck disable=SC2317
calm() { [ ! -s err ]; }
# json EXPRESSION: a Python condition over d, the object on stdout.
# shellcheck disable=SC2317
json() { python3 -c 'import json, sys; d = json.load(open("out")); sys.exit(not eval("(" + sys.argv[1] + ")"))' "$1"; }
# shellcheck disable=SC2317
not() { ! "$@"; }

# terminal [-i TEXT] ARGUMENTS...: the same with a terminal for all three streams; TEXT is typed. All output is in out.
terminal() {
    : >err
    python3 - "$bin" "$@" >out <<'PYTHON'
import os, pty, sys
binary, arguments, typed = sys.argv[1], sys.argv[2:], b""
if arguments[0] == "-i":
    typed, arguments = arguments[1].encode(), arguments[2:]
pid, fd = pty.fork()
if pid == 0:
    os.execv(binary, [binary] + arguments)
if typed:
    os.write(fd, typed)
output = b""
while True:
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    if not piece:
        break
    output += piece
sys.stdout.buffer.write(output)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
    rc=$?
}

# --- the program itself -------------------------------------------------------------------------------------------

commands="demo add import search ask list forget stats verify doctor"

run --help
is 'help: exit code' exits 0
is 'help: exit codes are named' says 'Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found'
for command in $commands; do
    run --help
    is "help lists $command" grep -qE "^  $command +[a-z]" out
    run "$command" --help
    is "$command --help: exit code" exits 0
    is "$command --help: usage" grep -q "^Usage: inferscale $command " out
    is "$command --help: an example" grep -q "^  inferscale $command" out
    is "$command --help: a common option" says '--store FOLDER'
    is "$command --help: exit codes" says 'Exit codes:'
    is "$command --help: nothing on stderr" calm
done

run --version
is 'version' grep -qE '^inferscale [0-9]+\.[0-9]+\.[0-9]+$' out
run
is 'no command: exit code' exits 2
is 'no command: text' complains 'inferscale: a command is missing'
run serach
is 'unknown command: exit code' exits 2
is 'unknown command: nearest' complains 'did you mean `inferscale search`?'
run --store x list
is 'option before the command' complains 'options stand behind the command'
run list --frobnicate
is 'unknown option: exit code' exits 2
is 'unknown option: text' complains 'inferscale: list: unknown option --frobnicate; `inferscale list --help` says more'
run list --frobnicate --json
is 'unknown option as JSON' json 'd["error"]["status"] == "IS_EINVAL" and "--frobnicate" in d["error"]["text"]'
run list -x
is 'unknown letter' complains 'unknown option -x'
run list --store
is 'missing value' complains '--store needs a value'
run list --json=yes
is 'value for a flag' complains '--json takes no value'
run list surplus
is 'surplus argument' exits 2
run list --limit 0
is 'number out of range: exit code' exits 2
is 'number out of range: text' complains '--limit must be a whole number from 1 to'
run list --limit 5x
is 'no number' exits 2
for bad in 12Q -1 '' 1.5G 99999999999999G 0; do
    run list --memory "$bad"
    is "bad size '$bad'" exits 2
done
run search x -k 201
is 'k out of range' exits 2
run ask x --temperature warm
is 'no real number' complains '--temperature must be a number from 0 to 100'
run ask x --mode sideways
is 'unknown mode' complains '--mode must be inject, prefill or off'
run ask
is 'no question' exits 2
run search
is 'no query' exits 2

# --- where things lie -----------------------------------------------------------------------------------------------

run list
is 'no store: exit code' exits 3
is 'no store: text' complains "no store at $INFERSCALE_STORE: No such file or directory; \`inferscale add\`"
is 'no store: none was made' [ ! -e "$INFERSCALE_STORE" ]
run list --json
is 'no store as JSON' json 'd["error"]["status"] == "IS_ENOTFOUND"'
is 'no store as JSON: stderr too' complains 'inferscale: no store at'
for command in search ask; do
    run "$command" x
    is "no store: $command" exits 3
done
env -u INFERSCALE_STORE "$bin" list >out 2>err
rc=$?
is 'default store' complains "no store at $HOME/.local/share/inferscale:"
env -u INFERSCALE_STORE XDG_DATA_HOME="$work/data" "$bin" list >out 2>err
is 'default store, XDG_DATA_HOME' complains "no store at $work/data/inferscale:"
env -u INFERSCALE_MODEL "$bin" add x >out 2>err
rc=$?
is 'no chat model: exit code' exits 3
is 'no chat model: text' complains \
    "cannot read the chat model $HOME/.cache/inferscale/models/SmolLM2-135M-Instruct-Q4_0.gguf: No such file"
is 'no chat model: remedy' complains 'run `make setup`, or name a GGUF file with --model'
env -u INFERSCALE_MODEL INFERSCALE_CACHE="$work/cache" "$bin" add x >out 2>err
is 'no chat model, INFERSCALE_CACHE' complains "$work/cache/models/SmolLM2-135M-Instruct-Q4_0.gguf"
is 'no chat model: nothing was added' [ ! -e "$INFERSCALE_STORE" ]
run add x --embedding-model missing.gguf --no-wait
is 'named embedding model missing' exits 3
printf 'GGUF this is not' >broken.gguf
run add x --model broken.gguf --store broken
is 'broken model: exit code' exits 1
is 'broken model: text' complains 'broken.gguf'
run add x --embedding-model broken.gguf --no-wait --store broken
is 'broken embedding model: exit code' exits 1
is 'broken embedding model: text' complains 'broken.gguf'

# --- add, list ------------------------------------------------------------------------------------------------------

run add 'Ann has a grey cat called Moss.' 'Ann lives in Leiden.' --no-wait --model missing.gguf \
    --time 2024-05-01T13:56Z --source S1:1 --metadata '{"topic": "home"}'
is 'add: exit code' exits 0
is 'add: ids' [ "$(cat out)" = $'1\n2' ]
is 'add --no-wait needs no chat model' calm
run list --json
is 'list: what was added' json \
    '[(f["id"], f["text"], f["source"], f["time"], f["metadata"]) for f in d["facts"]] ==
     [(1, "Ann has a grey cat called Moss.", "S1:1", 1714571760, {"topic": "home"}),
      (2, "Ann lives in Leiden.", "S1:1", 1714571760, {"topic": "home"})]'
run list
is 'list for people' grep -qE '^ +2  2024-05-01  Ann lives in Leiden\.$' out
printf 'Ann plays the oboe.\n\n  \nAnn is allergic to hazelnuts.\r\nlast, without an end' |
    "$bin" add - --no-wait --json >out 2>err
rc=$?
is 'add from stdin' json 'd["ids"] == [3, 4, 5] and d["encoded"] == 0'
run list --after 2 --limit 2 --json
is 'list: a page' json '[f["id"] for f in d["facts"]] == [3, 4]'
is 'list: no time, no metadata' json 'd["facts"][0]["time"] is None and d["facts"][0]["metadata"] is None'
run list --after 5 --json
is 'list: behind the end' json 'd["facts"] == []'
for bad in 'tomorrow' '2024-13-01' ''; do
    run add x --no-wait --time "$bad"
    is "add: bad time '$bad'" exits 2
done
run add x --no-wait --metadata '[1]'
is 'add: bad metadata: exit code' exits 2
is 'add: bad metadata: text' complains '--metadata must be a JSON object'
run add '' --no-wait
is 'add: empty text' exits 1
run add --no-wait
is 'add: no text' exits 2
"$bin" add - --no-wait >out 2>err </dev/null
rc=$?
is 'add: empty stdin' exits 2
printf 'a\0b\n' | "$bin" add - --no-wait >out 2>err
rc=$?
is 'add: zero byte' exits 1
run add "$(printf 'x%.0s' {1..4097})" --no-wait --json
is 'add: too long: exit code' exits 1
is 'add: too long: JSON' json 'd["error"]["status"] == "IS_ELIMIT"'
run add $'bad \xff byte' --no-wait
is 'add: no UTF-8' exits 1
run list --json
is 'what was refused was not added' json 'len(d["facts"]) == 5'
run list --user nobody
is 'list: unknown user' exits 3
run add 'Bob has a boat.' --user bob --tenant t --agent a --run r --no-wait
run list --user bob
is 'scope: other parts count' exits 3
run list --user bob --tenant t --agent a --run r
is 'scope: all parts' says 'Bob has a boat.'

# --- import ---------------------------------------------------------------------------------------------------------

{
    printf '{"type":"turn","id":"T1","session":"S","speaker":"Cleo","text":"Hi","time":"2024-01-02"}\n'
    printf '{"text":"Cleo sings.","source":"T1","user":"cleo"}\n'
    printf 'no json\n{"text":""}\n'
    printf '{"text":"Cleo swims.","user":"cleo","metadata":{"topic":"sport"},"time":"2024-02-03"}\n'
} >small.jsonl
run import small.jsonl --no-encode --model missing.gguf
is 'import: exit code' exits 0
is 'import: summary' complains 'imported 2 facts and 1 turns'
is 'import: skipped, where and why' grep -qE '^skipped: line 3: .+' err
is 'import: skipped, the other' complains 'skipped: line 4: text is empty'
is 'import: nothing on stdout' silent
run list --user cleo --json
is 'import: facts of their scope' json '[f["text"] for f in d["facts"]] == ["Cleo sings.", "Cleo swims."]'
for _ in {1..30}; do echo '{"text":""}'; done | cat - small.jsonl >many.jsonl
run import many.jsonl --no-encode --json
is 'import as JSON' json 'd["facts"] == 2 and d["turns"] == 1 and d["skipped"] == 32 and len(d["skips"]) == 20'
is 'import: the rest of the skipped' complains 'skipped: 12 more'
run import many.jsonl --no-encode --quiet
is 'import --quiet' calm
python3 - >big.jsonl <<'PYTHON'
import json
for i in range(700):
    print(json.dumps({"text": f"Number {i} is on the list.", "user": "dora"}))
PYTHON
"$bin" import - --no-encode --quiet <big.jsonl >out 2>err
rc=$?
is 'import from stdin' exits 0
run list --user dora --json
is 'import: order over batches' json '[f["text"] for f in d["facts"]] == [f"Number {i} is on the list." for i in range(700)]'
run import "$root/tests/corpus/import/locomo.json" --sample c1 --no-encode --quiet
is 'import LoCoMo: exit code' exits 0
run list --user c1
is 'import LoCoMo: a fact' says 'Ann has a dog.'
run import "$root/tests/corpus/import/locomo.json" --sample c9 --no-encode
is 'import LoCoMo: no such sample' exits 3
run import missing.jsonl --no-encode
is 'import: no such file' exits 3
: >empty.jsonl
run import empty.jsonl --no-encode
is 'import: empty file' exits 1
run import
is 'import: no file' exits 2

# --- search ---------------------------------------------------------------------------------------------------------

run search 'what is my pet called' -k 2 --json
is 'search: by meaning' json 'd["facts"][0]["id"] == 1 and len(d["facts"]) == 2'
is 'search: best first' json 'd["facts"][0]["score"] >= d["facts"][1]["score"]'
run search 'oboe'
is 'search for people' grep -qE '^ *[0-9.]+ +3 .*Ann plays the oboe\.$' <(head -n 1 out)
run search 'pet' --where '{"topic": "home"}' --json
is 'search: metadata' json '{f["id"] for f in d["facts"]} == {1, 2}'
run search 'pet' --from 2024-05-01 --to 2024-05-02 --json
is 'search: time' json '{f["id"] for f in d["facts"]} == {1, 2}'
run search 'pet' --from 2024-05-02
is 'search: no fact then' complains 'no fact fits'
run search 'oboe' --user cleo --json
is 'search: other users stay out' json 'all("oboe" not in f["text"] for f in d["facts"])'
run search 'pet' --where 'topic'
is 'search: bad filter' exits 2
run search x --user nobody
is 'search: unknown user' exits 3
env -u INFERSCALE_EMBEDDING_MODEL "$bin" search oboe >out 2>err
is 'search without embedding model: found' says 'Ann plays the oboe.'
is 'search without embedding model: remark' complains 'searching by words alone'

# --- encode, stats, doctor ------------------------------------------------------------------------------------------

run stats --json
is 'stats: pending' json 'd["facts"] == d["facts_pending"] == 5 + 1 + 6 + 700 + 2 and d["facts_ready"] == 0'
run forget --all --user dora --yes --quiet
is 'forget --all --yes' exits 0
run add "${one[@]}"
is 'add without a text: exit code' exits 0
is 'add without a text: encodes all' complains 'encoded 14 facts in '
run stats --json
is 'stats: ready' json 'd["facts"] == d["facts_ready"] == 14 and d["chunk_bytes"] > 0'
run stats
is 'stats for people' grep -qE '^facts +14$' out
run doctor "${one[@]}"
is 'doctor: exit code' exits 0
is 'doctor: injection' says 'injection: yes'
is 'doctor: well' says 'everything works'
run doctor "${one[@]}" --json
is 'doctor as JSON' json 'd["ok"] and d["problems"] == [] and d["store"]["facts_ready"] == 14 and d["machine"]["cores"] > 0'
run doctor --model missing.gguf --json
is 'doctor, no model: exit code' exits 1
is 'doctor, no model: remedy' json 'not d["ok"] and "make setup" in d["problems"][0] and d["store"]["facts"] == 14'
run doctor --model broken.gguf
is 'doctor, broken model: exit code' exits 1
is 'doctor, broken model: text' grep -q '^problem: .*broken.gguf' out
run add 'Ann drives a red van.' "${one[@]}" --json
is 'add encodes its fact' json 'len(d["ids"]) == 1 and d["encoded"] == 1'

# --- ask ------------------------------------------------------------------------------------------------------------

short=(--max-tokens 16 "${one[@]}")
run ask 'What is the name of my cat?' "${short[@]}"
is 'ask: exit code' exits 0
is 'ask: an answer' [ -s out ]
is 'ask: summary' grep -qE '^TTFT .*; [0-9,]+ tokens injected, [0-9,]+ prefilled; 6 facts, 6 of them from chunks$' err
cp out streamed
run ask 'What is the name of my cat?' "${short[@]}" --json
is 'ask as JSON: injected' json 'd["tokens"]["injected"] > 0 and d["facts_injected"] == 6 and d["refused"] == 0'
is 'ask as JSON: facts' json 'len(d["facts"]) == 6 and all("score" in f and f["state"] == "ready" for f in d["facts"])'
is 'ask as JSON: timing' json '0 < d["timing"]["ttft_ms"] <= d["timing"]["total_ms"]'
is 'ask: streamed and whole are the same' json 'open("streamed").read() == d["answer"] + "\n"'
run ask 'What is the name of my cat?' "${short[@]}" --mode prefill --json
is 'ask, prefill' json 'd["mode"] == "prefill" and d["tokens"]["injected"] == 0 and len(d["facts"]) == 6'
run ask 'What is the name of my cat?' "${short[@]}" --mode off --json
is 'ask, off' json 'd["facts"] == [] and d["tokens"]["injected"] == 0'
run ask 'What is the name of my cat?' "${short[@]}" --fresh 2 --json
is 'ask, fresh' json 'd["facts_injected"] == 4 and len(d["facts"]) == 6'
run ask 'cat' "${short[@]}" -k 1 --facts --quiet
is 'ask: facts are listed' says 'Ann has a grey cat called Moss.'
is 'ask --quiet' calm
run ask 'cat' "${short[@]}" --where '{"topic": "home"}' --json
is 'ask: filter' json '{f["id"] for f in d["facts"]} == {1, 2}'
run ask 'Count to twenty.' --max-tokens 3 "${one[@]}" --mode off --json
is 'ask: length' json 'd["finish"] == "length" and d["tokens"]["generated"] == 3'
run ask 'What is the name of my cat?' "${short[@]}" --stop a --stop e --json
is 'ask: stop' json 'd["finish"] == "stop" and "a" not in d["answer"] and "e" not in d["answer"]'
run ask 'Hi' "${short[@]}" --user nobody
is 'ask: no facts: answered' exits 0
is 'ask: no facts: remark' complains 'answered without memory'
run ask 'Hi' --temperature 1.5 --top-p 0.9 --top-k 40 --min-p 0.01 --repeat-penalty 1.1 --seed 7 "${short[@]}" --quiet
cp out first
run ask 'Hi' --temperature 1.5 --top-p 0.9 --top-k 40 --min-p 0.01 --repeat-penalty 1.1 --seed 7 "${short[@]}" --quiet
is 'ask: the seed settles the answer' cmp -s first out

# --- forget, verify -------------------------------------------------------------------------------------------------

run forget 2 --json
is 'forget as JSON' json 'd["forgotten"] == 1'
run forget 2
is 'forget: gone already' exits 3
run forget 5 999
is 'forget: some are not there: exit code' exits 3
is 'forget: some are not there: text' complains '1 of 2 facts were forgotten'
run forget 1 --user cleo
is "forget: another user's fact" exits 3
run list --json
is 'forget: the others are there' json '[f["id"] for f in d["facts"] if f["id"] < 6] == [1, 3, 4]'
run forget two
is 'forget: no id' exits 2
run forget
is 'forget: nothing named' exits 2
run forget 1 --all
is 'forget: both' exits 2
run forget --all --user cleo
is 'forget --all, nobody to ask: exit code' exits 2
is 'forget --all, nobody to ask: text' complains '--yes forgets everything'
terminal -i $'n\n' forget --all --user cleo
is 'forget --all, no: exit code' exits 1
is 'forget --all, no: text' says 'Forget everything of user "cleo", for good? [y/N]'
run list --user cleo
is 'forget --all, no: still there' says 'Cleo sings.'
terminal -i $'y\n' forget --all --user cleo
is 'forget --all, yes' exits 0
run list --user cleo --json
is 'forget --all, yes: gone' not says 'Cleo'

run verify
is 'verify: exit code' exits 0
is 'verify: text' says '0 damaged, 0 missing, 0 files without an entry; database: ok'
run add "${one[@]}" --quiet # what stood behind forgotten facts
chunk=$(find store/chunks -name '*.chunk' -size +64k -print -quit)
printf 'damage' | dd of="$chunk" bs=1 seek=50000 conv=notrunc status=none
chunks=$(find store/chunks -name '*.chunk' | wc -l)
run verify --json
is 'verify, damaged chunk: exit code' exits 1
is 'verify, damaged chunk: found' json 'd["chunks_bad"] == 1 and not d["repaired"] and len(d["problems"]) == 1'
run verify --repair
is 'verify --repair: exit code' exits 0
is 'verify --repair: text' says '1 damaged'
run verify
is 'verify, repaired' exits 0
run add "${one[@]}" --quiet # the damaged chunk, a fact's or the header's, is made anew
run verify --json
is 'verify, repaired: encoded again' json 'd["chunks_bad"] == 0 and d["chunks_checked"] == '"$chunks"

# --- stores that cannot be used -------------------------------------------------------------------------------------

run list --store small.jsonl
is 'store is a file' exits 1
mkdir garbage
head -c 8192 /dev/urandom >garbage/inferscale.db
run list --store garbage --json
is 'store is garbage: exit code' exits 1
is 'store is garbage: JSON' json 'd["error"]["status"] == "IS_ECORRUPT"'
mkdir locked
chmod 000 locked
plain=() # root may read everything, unless that is taken away
[ "$(id -u)" -ne 0 ] || plain=(setpriv '--bounding-set=-dac_override,-dac_read_search')
"${plain[@]}" "$bin" list --store locked/store >out 2>err
rc=$?
is 'no permission: exit code' exits 1
is 'no permission: text' complains 'Permission denied'
chmod 755 locked

# --- streams --------------------------------------------------------------------------------------------------------

run import big.jsonl --no-encode --quiet --store pipe
"$bin" list --user dora --store pipe 2>err | head -n 1 >out
status=("${PIPESTATUS[@]}")
is 'reader goes away: no crash' [ "${status[0]}" -le 1 ]
is 'reader goes away: no noise' calm
is 'reader goes away: the first line' says 'Number 0 is'
"$bin" list --user dora --store pipe >/dev/full 2>err
rc=$?
is 'full disk: exit code' exits 1
is 'full disk: text' complains 'cannot write the output: No space left on device'
"$bin" list --user dora --store pipe >&- 2>err
rc=$?
is 'closed stdout: exit code' exits 1
"$bin" add 'Dora is here.' --user dora --store pipe --no-wait >&- 2>&- <&-
run verify --store pipe
is 'closed streams: the store is whole' exits 0
run list --after 700 --user dora --store pipe
is 'closed streams: the fact is there' says 'Dora is here.'
run add $'Dora\e[31m is\x07 red.' --user dora --store pipe --no-wait
terminal list --after 701 --user dora --store pipe
is 'terminal: control characters are kept from it' says 'Dora?[31m is? red.'

# --- interrupts, two processes --------------------------------------------------------------------------------------

# Starts a long answer; when it streams, tries the same store from a second process, then presses Ctrl-C.
cat >interrupt.py <<'PYTHON'
import signal, subprocess, sys
binary = sys.argv[1]
ask = [binary, "ask", "Tell me a long story about the sea.", "--max-tokens", "6000", "--threads", "1",
       "--repeat-penalty", "1.3"]
child = subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
first = child.stdout.read(20)
other = subprocess.run([binary, "list"], capture_output=True, text=True)
child.send_signal(signal.SIGINT)
rest, errors = child.communicate(timeout=60)
print("first", len(first))
print("ended by newline", (first + rest).endswith(b"\n"))
print("exit", child.returncode)
print("other", other.returncode, other.stderr)
PYTHON
: >err
python3 interrupt.py "$bin" >out 2>err
rc=$?
is 'Ctrl-C in an answer: it streamed' says 'first 20'
is 'Ctrl-C in an answer: exit code' says 'exit 130'
is 'Ctrl-C in an answer: whole line' says 'ended by newline True'
is 'two processes: exit code' says 'other 1'
is 'two processes: text' says "another process has the store $INFERSCALE_STORE open"
run list
is 'the store is free again' exits 0

# Encodes on a terminal and presses Ctrl-C as soon as the bar shows that a part is done.
cat >interrupt_encode.py <<'PYTHON'
import os, pty, signal, sys
binary, store, source = sys.argv[1:]
pid, fd = pty.fork()
if pid == 0:
    os.execv(binary, [binary, "import", source, "--store", store, "--threads", "1"])
output, pressed = b"", False
while True:
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    output += piece
    if not pressed and b"%" in output:
        os.write(fd, b"\x03")
        pressed = True
sys.stdout.buffer.write(output)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
head -n 80 big.jsonl >some.jsonl
python3 interrupt_encode.py "$bin" cut some.jsonl >out 2>err
rc=$?
is 'Ctrl-C in encoding: exit code' exits 130
is 'Ctrl-C in encoding: the bar' grep -qaE 'encoding \[#*-+\] +[0-9]+ %  [0-9]+ of 80 facts, [0-9.]+ a second' out
is 'Ctrl-C in encoding: what is next' says '`inferscale add` without a text encodes the rest'
run stats --store cut --json
is 'Ctrl-C in encoding: all facts, some encoded' json 'd["facts"] == 80 and d["facts_pending"] > 0'
run verify --store cut
is 'Ctrl-C in encoding: the store is whole' exits 0

# --- demo -----------------------------------------------------------------------------------------------------------

mkdir sample build
head -n 40 "$root/data/sample/conversation.jsonl" >sample/conversation.jsonl
head -n 3 "$root/data/sample/questions.json" | sed '3s/,$//;$a]' >sample/questions.json
facts=$(grep -c '"type": "fact"' sample/conversation.jsonl)
demo=(demo --folder sample "${one[@]}")
run "${demo[@]}"
is 'demo: exit code' exits 0
is 'demo: imported' says "1. Imported $facts facts from sample/conversation.jsonl into build/demo-store"
is 'demo: encoded' complains "encoded $facts facts in "
is 'demo: a question' says 'Question 1: Where do I keep my spare reading glasses?'
is 'demo: both answers' [ "$(grep -cE '^  (prefilled|injected): ' out)" -eq 4 ]
is 'demo: the chart' [ "$(grep -cE '^  (. prefilled|  injected ) #+ [0-9.]+ m?s$' out)" -eq 4 ]
is 'demo: the end' says 'Median speed-up: '
sed -n '/^What to try next:/,/^$/s/^  //p' out >next
is 'demo: four things to try' [ "$(wc -l <next)" -eq 4 ]
while read -r line; do
    case $line in # a server runs until it is told to end, and then ends well
    *' serve '*) line="timeout --preserve-status --signal TERM 20 $line --port 0" ;;
    esac
    eval "$line ${one[*]}" >out 2>err </dev/null
    rc=$?
    is "demo: to try: $line" exits 0
done <next
cp build/demo.json out
is 'demo.json' json 'd["facts"] == d["encoded"] == d["imported"] > 0 and len(d["questions"]) == 2 and d["median_speedup"] > 0'
is 'demo.json: machine and models' json 'd["machine"]["cpu"] and d["models"]["chat"].endswith(".gguf") and d["version"]'
is 'demo.json: same tokens' json \
    'all(sum(q["inject"]["tokens"][t] for t in ("injected", "prefilled")) == q["prefill"]["tokens"]["prefilled"]
         for q in d["questions"])'
run "${demo[@]}" --json
is 'demo again: exit code' exits 0
is 'demo again: nothing to import, nothing to encode' json 'd["imported"] == 0 and d["encoded"] == 0 and d["facts"] > 0'
run demo --folder missing
is 'demo: no sample: exit code' exits 1
is 'demo: no sample: text' complains 'cannot read missing/questions.json'
run demo --folder sample --out missing/demo.json "${one[@]}" --quiet
is 'demo: no place for the result: exit code' exits 1
is 'demo: no place for the result: text' complains 'cannot write missing/demo.json'

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
