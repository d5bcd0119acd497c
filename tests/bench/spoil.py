"""spoil.py JOURNAL: gives the first answer out of text an F1 that nothing could have measured, and cuts the last line short."""

import json
import sys

with open(sys.argv[1]) as file:
    lines = file.read().splitlines()
for i, line in enumerate(lines):
    note = json.loads(line)
    if " text " in note["key"] and note["value"]["category"] == 4:
        note["value"]["f1"] = 0.987
        lines[i] = json.dumps(note)
        break
with open(sys.argv[1], "w") as file:
    file.write("\n".join(lines)[:-20])
