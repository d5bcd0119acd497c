"""Compares src/eval with NLTK's stemmer and with LoCoMo's scores as its description has them.

    compare.py PROGRAM   build/VARIANT/tests/test_eval

The words are those of the sample conversation and of the documentation, and inflections made of them; questions,
answers and texts are put together out of the words with a fixed seed. With INFERSCALE_LOCOMO LoCoMo's own words and
answers come to it.
"""

import json
import os
import random
import re
import statistics
import string
import subprocess
import sys
import unicodedata
from collections import Counter
from itertools import islice
from pathlib import Path

import regex
from nltk.stem import PorterStemmer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = sys.argv[1]
WITHIN = 1e-9
random.seed(20240305)

# --- LoCoMo's scores ---------------------------------------------------------------------------------------------

stemmer = PorterStemmer()
without_punctuation = str.maketrans("", "", string.punctuation)


def normal(text):
    text = text.replace(",", "").lower().translate(without_punctuation)
    return regex.sub(r"\b(?:the|and|an|a)\b", " ", text).split()


def token_f1(gold, answer):
    gold, answer = (Counter(map(stemmer.stem, normal(text))) for text in (gold, answer))
    shared = (gold & answer).total()
    if not shared:
        return 0.0
    precision, recall = shared / answer.total(), shared / gold.total()
    return 2 * precision * recall / (precision + recall)


def score(category, gold, answer):
    if category == 5:
        refused = any(words in answer.lower() for words in ("no information available", "not mentioned"))
        return float(refused), refused
    if category == 3:
        gold = gold.partition(";")[0].strip()
    exact = set(normal(gold)) == set(normal(answer))
    if category != 1:
        return token_f1(gold, answer), exact
    answers = [item.strip() for item in answer.split(",")]
    return statistics.mean(max(token_f1(item.strip(), a) for a in answers) for item in gold.split(",")), exact


# --- The bootstrap -----------------------------------------------------------------------------------------------


def xorshift(x=0x9E3779B97F4A7C15, mask=(1 << 64) - 1):
    while True:
        x ^= x >> 12
        x ^= x << 25 & mask
        x ^= x >> 27
        yield (x * 0x2545F4914F6CDD1D & mask) >> 32


def interval(values):
    n = len(values)
    draws = xorshift()
    means = [sum(values[d * n >> 32] for d in islice(draws, n)) / n for _ in range(10000)]
    ends = statistics.quantiles(means, n=40, method="inclusive")
    return statistics.mean(values), ends[0], ends[-1]


# --- Words and texts ---------------------------------------------------------------------------------------------


def strings_of(value):
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return [str(value)]
    return [s for v in value for s in strings_of(v)]


texts = []
for path in [*sorted((ROOT / "data/sample").iterdir()), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]:
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        texts += [s for line in content.splitlines() for s in strings_of(json.loads(line))]
    elif path.suffix == ".json":
        texts += strings_of(json.loads(content))
    else:
        texts += content.splitlines()

path = os.environ.get("INFERSCALE_LOCOMO")
locomo = json.loads(Path(path).read_text(encoding="utf-8")) if path else []
questions = [q for sample in locomo for q in sample["qa"]]
texts += [s.replace("\n", " ") for s in strings_of(locomo)]

words = sorted({w for text in texts for w in [*text.split(), *normal(text)]})
ENDINGS = (
    "s es ies ed ied eed ing y ly ally ably ibly ency ancy ation ational ization ator izer alism iveness fulness "
    "ousness ality ivity bility icate ative alize icity ical ful ness fully logy al ance ence er ic able ible ant "
    "ement ment ent sion tion ion ou ism ate iti ous ive ize e l ll tt ss zz yy"
).split()
ODD = list("aeiouybdlsztwx") + list("éßñøüÉŁŽΣςДя’'–—…°½✓") + ["🎉", "e\u0301", "\u00a0", "\u200b", "İ", "ſ"]
roots = [w for w in words if w.isalpha()]


def some_word():
    kind = random.random()
    if kind < 0.4:
        return random.choice(words)
    if kind < 0.55:
        return random.choice(("a", "an", "the", "and", "A", "The", "AND", "a.n.d"))
    if kind < 0.85:
        root = random.choice(roots)
        return (
            root[: random.randint(1, len(root))] + random.choice(ENDINGS) + random.choice(("", random.choice(ENDINGS)))
        )
    return "".join(random.choices(ODD, k=random.randint(1, 6)))


def some_text(n):
    parts = [
        some_word() + random.choice((" ",) * 12 + ("",) * 2 + (", ", ",", "; ", "\u00a0", "—", "\t", " ."))
        for _ in range(n)
    ]
    return "".join(parts)


def answer_to(gold):
    """Words of the gold, some left out, some others put in, in another order, with other case and punctuation."""
    parts = re.findall(r"[^\s,;]+|[,;]", gold)
    parts = [p for p in parts if random.random() < 0.8] + [some_word() for _ in range(random.randint(0, 3))]
    if random.random() < 0.5:
        random.shuffle(parts)
    if random.random() < 0.05:
        parts.insert(
            random.randint(0, len(parts)),
            random.choice(("Not mentioned", "NO information available", "not, mentioned")),
        )
    text = random.choice((" ", " ", " ", ", ")).join(parts)
    return random.choice((str, str.upper, str.title))(text)


# --- The comparison ----------------------------------------------------------------------------------------------


def ask(what, lines):
    assert not any("\n" in line or "\0" in line for line in lines)
    result = subprocess.run(
        [PROGRAM, what], input="".join(line + "\n" for line in lines).encode(), stdout=subprocess.PIPE
    )
    answers = result.stdout.decode().split("\n")[:-1]
    if result.returncode != 0 or len(answers) != len(lines):
        sys.exit(f"{what}: exit code {result.returncode} after {len(answers)} of {len(lines)} lines")
    return answers


failed = False


def compare(what, inputs, expected, given, same):
    global failed
    differ = [i for i in range(len(inputs)) if not same(expected[i], given[i])]
    print(f"{what}: {len(inputs)} compared, {len(differ)} differ")
    for i in differ[:20]:
        print(f"  {inputs[i]!r}: {given[i]!r}, not {expected[i]!r}")
    failed = failed or bool(differ) or not inputs


def close(a, b):
    return all(abs(x - y) <= WITHIN for x, y in zip(a, b, strict=True))


def numbers(line):
    return tuple(map(float, line.split()))


made = sorted(
    {"".join(some_word().split()) for _ in range(40000)}
    | {w[:k] + e for w in roots for k in (2, 3, 5) for e in ENDINGS}
)
for what, some in (("words", words), ("made words", made)):
    compare(f"stems of {what}", some, [stemmer.stem(w) for w in some], ask("stems", some), str.__eq__)

# Every letter of the scripts that letters.h names, as far as both this Python and regex know it.
letters = [
    chr(c)
    for first, last in (
        (0x20, 0x58F),
        (0x1680, 0x1680),
        (0x1E00, 0x2BFF),
        (0x2E00, 0x303F),
        (0xFE00, 0xFFFF),
        (0x1F000, 0x1FBFF),
    )
    for c in range(first, last + 1)
    if unicodedata.category(chr(c)) != "Cn" and not regex.match(r"\p{Cn}", chr(c))
]
lines = [f"{c} A{c} {c}the{c}an B{c}x and {c}" for c in letters]
lines += [f"Σ{c} AΣ{c} Σ{c}Σ AΣ{c}A {c}Σ A{c}Σ" for c in letters if c < "\u0590" or "\u1e00" <= c < "\u2070"]
lines += [some_text(random.randint(0, 12)).replace("\n", " ") for _ in range(20000)] + [
    t for t in texts if "\n" not in t
]
compare("normalised", lines, [" ".join(normal(t)) for t in lines], ask("normal", lines), str.__eq__)

cases = []
for _ in range(20000):
    gold = some_text(random.randint(0, 8))
    cases.append((random.randint(1, 5), gold, answer_to(gold)))
for q in questions:
    gold = str(q.get("answer", q.get("adversarial_answer")))
    others = [gold, answer_to(gold), q["question"], str(random.choice(questions).get("answer", "Not mentioned."))]
    cases += [(q["category"], gold, other) for other in others]
lines = [json.dumps({"category": c, "gold": g, "answer": a}) for c, g, a in cases]
given = [numbers(line) for line in ask("scores", lines)]
compare("scores", cases, [score(*case) for case in cases], given, close)
partly = sum(0 < f1 < 1 for f1, _ in given)
print(f"  {partly} between 0 and 1, {sum(f1 == 1 for f1, _ in given)} of 1, {sum(e == 1 for _, e in given)} exact")

series = [[random.choice((-1, -0.5, 0, 0, 0, 1 / 3, 1)) for _ in range(n)] for n in (2, 3, 10, 57)]
series += [[random.gauss(0.1, 1) for _ in range(120)]]
given = [numbers(line) for line in ask("intervals", [json.dumps(s) for s in series])]
compare("intervals", series, [interval(s) for s in series], given, close)

sys.exit(failed)
