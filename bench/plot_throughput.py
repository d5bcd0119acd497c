#!/usr/bin/env python3
"""Draws requests a second and the time to the first token over the number of users as an SVG.

    build/inferscale bench throughput --json > bench/results/throughput.json
    bench/plot_throughput.py bench/results/throughput.json docs/throughput.svg

A circle that is not filled is a rate that was measured with fewer users and stands for more; times stand where they
were measured.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, GAP = 960, 400, 70, 30, 62, 52, 86
PANEL = (WIDTH - LEFT - RIGHT - GAP) / 2
SYSTEMS = [("inject", "injected", "#1f6f8b"), ("prefill", "prefilled", "#b5432e"),
           ("peer", "llama-server", "#8a8f98")]


def ticks(low, high):
    """1, 2 and 5 times the powers of ten, or those alone where there would be many."""
    steps = (1, 2, 5) if high / low <= 1000 else (1,)
    found = [step * 10 ** power for power in range(-4, 8) for step in steps]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def around(values):
    """The ticks' range that holds all values."""
    marks = [step * 10 ** power for power in range(-4, 8) for step in (1, 2, 5)]
    return max(m for m in marks if m <= min(values)), min(m for m in marks if m >= max(values))


def label(value, unit):
    if unit == "ms":
        return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"
    return f"{value:g}"


class Panel:
    def __init__(self, left, title, unit, values, users):
        self.left, self.title, self.unit, self.users = left, title, unit, users
        self.low, self.high = around(values)

    def x(self, users):
        return self.left + PANEL * users / max(self.users)

    def y(self, value):
        part = math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part

    def frame(self):
        right = self.left + PANEL
        out = [f'<text x="{self.left}" y="48" fill="#222">{self.title}</text>']
        for tick in ticks(self.low, self.high):
            out.append(f'<line x1="{self.left}" y1="{self.y(tick):.1f}" x2="{right:.1f}" y2="{self.y(tick):.1f}" '
                       'stroke="#e3e3e3"/>')
            out.append(f'<text x="{self.left - 8}" y="{self.y(tick) + 4:.1f}" text-anchor="end" fill="#555">'
                       f'{label(tick, self.unit)}</text>')
        for users in self.users:
            out.append(f'<text x="{self.x(users):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#555">'
                       f'{users}</text>')
        out.append(f'<text x="{(self.left + right) / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle" fill="#555">'
                   'users asking at once</text>')
        return out

    def series(self, points, colour):
        """points: (users, value, measured with that many users)"""
        path = " ".join(f"{self.x(users):.1f},{self.y(value):.1f}" for users, value, _ in points)
        out = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
        for users, value, measured in points:
            fill = colour if measured else "#ffffff"
            out.append(f'<circle cx="{self.x(users):.1f}" cy="{self.y(value):.1f}" r="3" fill="{fill}" '
                       f'stroke="{colour}"/>')
        return out


def rates(rows, system):
    """(users, requests a second, measured with that many users)"""
    return [(row["users"], row["requests_per_s"], row["users"] == row["users_measured"]) for row in rows
            if row["system"] == system and row["requests_per_s"]]


def times(rows, system):
    """(users, TTFT, True): where it was measured"""
    found = {row["users_measured"]: row["ttft_p50_ms"] for row in rows if row["system"] == system}
    return [(users, ms, True) for users, ms in sorted(found.items()) if ms]


def legend(names):
    out, x = [], WIDTH - RIGHT - 110 * len(names)
    for text, colour in names:
        out.append(f'<circle cx="{x}" cy="20" r="4" fill="{colour}"/>')
        out.append(f'<text x="{x + 9}" y="24" fill="{colour}">{text}</text>')
        x += 110
    return out


def draw(data):
    rows = sorted(data["throughput"], key=lambda row: row["users"])
    users = sorted({row["users"] for row in rows})
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="13">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold" fill="#222">Under load: {data["k"]} facts in '
           f'the prompt, {data["output_tokens"]} tokens of answer</text>']
    known = [(system, text, colour) for system, text, colour in SYSTEMS if rates(rows, system)]
    out.extend(legend([(text, colour) for _, text, colour in known]))
    left = LEFT
    for points_of, title, unit in ((rates, "requests a second", ""), (times, "TTFT, median", "ms")):
        lines = [(points_of(rows, system), colour) for system, _, colour in known]
        panel = Panel(left, title, unit, [value for points, _ in lines for _, value, _ in points], users)
        out.extend(panel.frame())
        for points, colour in lines:
            out.extend(panel.series(points, colour))
        left += PANEL + GAP
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        data = json.load(source)
    with open(sys.argv[2], "w", encoding="utf-8") as target:
        target.write(draw(data))


if __name__ == "__main__":
    main()
