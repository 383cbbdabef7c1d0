"""The figures of README.md: read from docs/results, and the first call's, measured here.

    python -m benchmarks.front_page            # prints the table that README.md must have
    python -m benchmarks.front_page --write    # puts it and the picture in their places
    python -m benchmarks.front_page --measure  # seconds of the first call, overhead of a call

`--measure` writes docs/results/start.json. A test compares README.md with the files.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PICTURE = ROOT / "docs" / "speed.svg"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
ENGINES = {"torch.compile": "torch.compile", "inductor": "dynamo.compile",
           "openvino": "OpenVINO", "onnxrt": "ONNX Runtime"}  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """means: for each engine, the geometric mean of its speeds over eager's."""

    title: str
    models: int
    means: dict[str, float]


def speeds() -> Iterator[Speed]:
    for file, kind, title in (
        ("table3-cuda", "inference", "GPU, inference in float16"),
        ("table3-cuda", "training", "GPU, training in bfloat16"),
        ("table3-zen4", "inference", "CPU (AMD), inference in float32"),
        ("table3", "inference", "CPU (Intel), inference in float32"),
    ):
        rows = [row for row in json.loads((RESULTS / f"{file}.json").read_text())["rows"]
                if row["kind"] == kind and "skipped" not in row]
        means = {}
        for engine in ENGINES:
            found = [row[engine] for row in rows if isinstance(row.get(engine), float)]
            if len(found) == len(rows):  # an engine that fails on some has no mean over all
                means[engine] = statistics.geometric_mean(found)
        yield Speed(title, len(rows), means)


def table() -> str:
    lines = ["| times faster than eager, geometric mean | " + " | ".join(ENGINES.values()) + " |",
             "| --- |" + " --- |" * len(ENGINES)]
    for speed in speeds():
        cells = [f"{speed.means[engine]:.2f}" if engine in speed.means else "–"
                 for engine in ENGINES]
        lines.append(f"| {speed.title} ({speed.models} models) | " + " | ".join(cells) + " |")
    start = json.loads((RESULTS / "start.json").read_text())
    lines += ["", "| waiting, beyond eager's own first call | torch.compile | dynamo.compile |",
              "| --- | --- | --- |"]
    for row in start["rows"]:
        lines.append(f"| {row['what']} | {row['torch']:.3g} {row['unit']} | "
                     f"{row['ours']:.3g} {row['unit']} |")
    meaning = json.loads((RESULTS / "meaning.json").read_text())["rows"]
    counts = {engine: sum(row["verdicts"][engine] != "right" for row in meaning)
              for engine in ("torch", "ours")}
    lines += ["", f"| of {len(meaning)} programs after public reports | torch.compile | "
              "dynamo.compile |", "| --- | --- | --- |",
              f"| wrong without a word, or an error | {counts['torch']} | {counts['ours']} |"]
    return "\n".join(lines)


def picture() -> str:
    """Bars of the speeds over eager, as SVG that is legible on light and dark pages."""
    colours = {"torch.compile": "#8a94a6", "inductor": "#e4572e", "openvino": "#4c8bf5",
               "onnxrt": "#3aa17e"}  # fmt: skip
    scale, left, y, parts = 150, 250, 34, []
    for at, (engine, name) in enumerate(ENGINES.items()):
        x = left + at * 130
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colours[engine]}"/>'
                     f'<text x="{x + 17}" y="18">{name}</text>')
    for speed in speeds():
        parts.append(f'<text x="{left - 10}" y="{y + 18}" text-anchor="end">{speed.title}</text>')
        for engine, mean in speed.means.items():
            width = round(mean * scale)
            parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="14" rx="2" '
                         f'fill="{colours[engine]}"/><text x="{left + width + 6}" y="{y + 11}">'
                         f"{mean:.2f}</text>")
            y += 18
        y += 14
    parts.append(f'<line x1="{left + scale}" x2="{left + scale}" y1="28" y2="{y - 8}" '
                 f'stroke="#777" stroke-dasharray="3 3"/><text x="{left + scale}" y="{y + 6}" '
                 'text-anchor="middle">eager = 1</text>')
    style = ("text{font:12px sans-serif;fill:#444}"
             "@media(prefers-color-scheme:dark){text{fill:#ccc}}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{y + 16}" '
            f'viewBox="0 0 780 {y + 16}"><style>{style}</style>{"".join(parts)}</svg>\n')


def put(text: str) -> str:
    """README.md with the table in its place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def overhead(rounds: int = 15, calls: int = 2000) -> dict[str, float]:
    """Microseconds of a call of two small operations, medians of rounds that take turns."""
    import dynamo

    x, y = torch.randn(8), torch.randn(8)
    ways = {"eager": small, "ours": dynamo.compile(small), "torch": torch.compile(small)}
    for way in ways.values():
        way(x, y)
        way(x, y)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(timeit.timeit(lambda way=way: way(x, y), number=calls) / calls * 1e6)
    return {name: statistics.median(found) for name, found in took.items()}


def first_calls(kind: str, runs: int = 3) -> dict[str, tuple[float, float]]:
    """(cold, warm) seconds of BERT's first call beyond eager's, by implementation."""
    from benchmarks import warm_start

    options = argparse.Namespace(size="small", device="cpu", dtype="float32", mode=None, log=None,
                                 training_dtype="float32", threads=2)
    found = {}
    for implementation in ("torch", "dynamo"):
        with tempfile.TemporaryDirectory() as folder:
            took = []
            for _ in range(1 + runs):
                made = warm_start.in_process(options, "bert", kind, implementation, folder)
                took.append(made["first"] - made["eager"])
        found[implementation] = took[0], statistics.median(took[1:])
    return found


def measure() -> dict[str, Any]:
    rows = []
    for kind, what in (("inference", "inference"), ("train", "training step")):
        took = first_calls(kind)
        for at, state in enumerate(("empty cache", "filled cache")):
            rows.append({"what": f"BERT of four layers, first {what}, {state}", "unit": "s",
                         "torch": took["torch"][at], "ours": took["dynamo"][at]})
    micro = overhead()
    rows.append({"what": f"a call of two small operations (eager {micro['eager']:.2g} µs)",
                 "unit": "µs", "torch": micro["torch"], "ours": micro["ours"]})
    machine = {"processor": platform.processor() or platform.machine(),
               "python": platform.python_version(), "torch": torch.__version__}
    return {"command": "python -m benchmarks.front_page --measure", "machine": machine,
            "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_page",
                                     description="The figures of README.md.")
    parser.add_argument("--write", action="store_true", help="README.md and docs/speed.svg")
    parser.add_argument("--measure", action="store_true", help="docs/results/start.json")
    options = parser.parse_args()
    if options.measure:
        (RESULTS / "start.json").write_text(json.dumps(measure(), indent=1) + "\n")
    if options.write:
        readme = ROOT / "README.md"
        readme.write_text(put(readme.read_text()))
        PICTURE.write_text(picture())
    print(table())


if __name__ == "__main__":
    main()
