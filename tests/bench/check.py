"""check.py FILE CONDITION: whether this holds of d, the JSON in the file."""

import csv as reader
import json
import math
import sys


def by(rows, name):
    return next(row for row in rows if row["name"] == name)


def near(a, b):
    """As near as the digits that are printed tell."""
    return math.isclose(a, b, abs_tol=1e-6)


def csv(path):
    with open(path, newline="") as file:
        return list(reader.DictReader(file))


with open(sys.argv[1]) as text:
    d = json.load(text)
sys.exit(not eval(sys.argv[2]))
