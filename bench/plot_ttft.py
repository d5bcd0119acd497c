#!/usr/bin/env python3
"""Draws the time to first token over k as an SVG.

    build/inferscale bench ttft --json > bench/results/ttft.json
    bench/plot_ttft.py bench/results/ttft.json docs/ttft.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 70, 150, 46, 52
SERIES = [("prefill_ttft_ms", "prefilled", "#b5432e"), ("inject_ttft_ms", "injected", "#1f6f8b"),
          ("resident_ttft_ms", "already in the cache", "#8a8f98")]


def scale(rows):
    values = [row[name] for row in rows for name, _, _ in SERIES if row[name]]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values)))
    most = max(row["k"] for row in rows)

    def x(k):
        return LEFT + (WIDTH - LEFT - RIGHT) * k / most

    def y(ms):
        part = (math.log10(ms) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part

    return x, y, low, high


def draw(data):
    rows = sorted(data["ttft"], key=lambda row: row["k"])
    x, y, low, high = scale(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="13">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold" fill="#222">Time to first token over the facts '
           'in the prompt</text>']
    tick = low
    while tick <= high:
        label = f"{tick:g} ms" if tick < 1000 else f"{tick / 1000:g} s"
        out.append(f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y(tick):.1f}" stroke="#e3e3e3"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#555">{label}</text>')
        tick *= 10
    for row in rows:
        out.append(f'<text x="{x(row["k"]):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#555">'
                   f'{row["k"]}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle" fill="#555">facts (k)'
               '</text>')
    for name, label, colour in SERIES:
        points = [(x(row["k"]), y(row[name])) for row in rows if row[name]]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        dash = ' stroke-dasharray="4 4"' if name == "resident_ttft_ms" else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out.extend(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points)
        shift = 16 if name == "resident_ttft_ms" else -2
        out.append(f'<text x="{points[-1][0] + 10:.1f}" y="{points[-1][1] + shift:.1f}" fill="{colour}">{label}</text>')
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
