#!/usr/bin/env python3
"""Draws docs/charts/*.svg from the JSON of benchmarks in docs/measurements/data.

    charts.py [--check]     --check: fail if a chart differs from its data

A new chart: run the benchmark with `--json docs/measurements/data/NAME.json`, then `make charts`.
"""

import dataclasses
import html
import json
import math
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
ENGINES = {"onnx": "ONNX Runtime", "tensorflow": "TensorFlow", "torch": "LibTorch"}
ARMS = {
    "heap": ("parameters in the heap", "#d1495b"),
    "pool": ("Millpond", "#00798c"),
    "control": ("control: no swap", "#8d99ae"),
}
VARIANTS = {
    "pool": "a swap every 6 s",
    "two": "two models at once",
    "minute": "a swap every 10 s, whole minute",
    "cold": "files not in the page cache",
    "delta10": "a tenth of the parameters changed",
    "control": "control: no swap",
}
WIDTH, LABEL, RIGHT, BAR, GAP = 760, 250, 80, 18, 14


@dataclasses.dataclass
class Bar:
    label: str
    value: float
    colour: str


def swap(engine: str) -> dict | None:
    path = DOCS / f"measurements/data/swap-{engine}.json"
    return json.loads(path.read_text()) if path.exists() else None


def machine(report: dict) -> str:
    return f"{report['machine']['cpu']}, {report['machine']['cores']} cores shared with the load generator"


def size(report: dict) -> str:
    return f"{report['setting']['bytes'] / 2**30:.1f} GiB"


def p999(report: dict, arm: str) -> float:
    return report["arms"][arm]["swap"]["p999_ms"]


def swap_chart(reports: dict[str, dict]) -> str:
    """Draws heap, Millpond and control of every engine."""
    groups = {
        f"{ENGINES[engine]}, {size(report)}, {report['setting']['rate_rps']:.0f} requests/s": [
            Bar(label, p999(report, arm), colour) for arm, (label, colour) in ARMS.items()
        ]
        for engine, report in reports.items()
    }
    return draw("p999 latency within 5 s of a model swap, in ms (less is better)", groups, machine(next(iter(reports.values()))))


def variants_chart(reports: dict[str, dict]) -> str:
    """Draws the kinds of swaps of every engine."""
    groups = {}
    for engine, report in reports.items():
        arms = [arm for arm in VARIANTS if arm in report["arms"]]
        groups[ENGINES[engine]] = [
            Bar(VARIANTS[arm], p999(report, arm), ARMS["control" if arm == "control" else "pool"][1]) for arm in arms
        ]
    return draw("Kinds of swaps: p999 latency, in ms (less is better)", groups, machine(next(iter(reports.values()))))


def load_chart(reports: dict[str, dict]) -> str:
    """Draws the time of a load, whole and of a changed tenth."""
    groups = {}
    for engine, report in reports.items():
        arms = {"heap": "heap, as the engine loads", "pool": "Millpond, all parameters", "delta10": "Millpond, a tenth changed"}
        groups[ENGINES[engine]] = [
            Bar(label, report["arms"][arm]["load_s"], ARMS["heap" if arm == "heap" else "pool"][1])
            for arm, label in arms.items() if arm in report["arms"]
        ]  # fmt: skip
    return draw("Time to load a version under traffic, in s", groups, machine(next(iter(reports.values()))))


def draw(title: str, groups: dict[str, list[Bar]], note: str) -> str:
    """Returns horizontal bars from zero as SVG, readable on light and dark pages."""
    largest = max(bar.value for bars in groups.values() for bar in bars)
    scale = (WIDTH - LABEL - RIGHT) / largest
    parts = []
    y = 34
    for name, bars in groups.items():
        y += 22
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{html.escape(name)}</text>')
        y += 8
        for bar in bars:
            width = max(bar.value * scale, 1)
            middle = y + BAR - 5
            parts.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{html.escape(bar.label)}</text>')
            parts.append(f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{bar.colour}"/>')
            parts.append(f'<text x="{LABEL + width + 6:.1f}" y="{middle}">{rounded(bar.value)}</text>')
            y += BAR + 4
        y += GAP - 8
    height = y + 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">\n<title>{html.escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text x="10" y="24" font-size="16" font-weight="bold">{html.escape(title)}</text>\n'
    )
    foot = f'<text x="10" y="{height - 10}" font-size="11" fill="#57606a">{html.escape(note)}</text>\n</svg>\n'
    return head + "\n".join(parts) + "\n" + foot


def rounded(value: float) -> str:
    """Returns the number with three significant digits."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{digits}f}"


def main() -> int:
    reports = {engine: report for engine in ENGINES if (report := swap(engine))}
    charts = {"swap": swap_chart, "swap-kinds": variants_chart, "load": load_chart}
    stale = []
    for name, chart in charts.items():
        path = DOCS / f"charts/{name}.svg"
        text = chart(reports)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        print(f"not the charts of docs/measurements/data: {', '.join(stale)}; run `make charts`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
