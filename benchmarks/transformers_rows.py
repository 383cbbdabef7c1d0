"""What is known of a model of the sweep over all types, as a verdict, lines of a table and reasons.

A row is what `transformers_all.Measurement` knows: keys like `eval_ours_error`, `train_ours_fails`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch

STEPS = ("eval", "train")
# Times eager's error that ours may be; what float64, compiled, may be away from eager's.
TIMES, ALLOWED_EXACT = 4.0, 1e-4
Row = dict[str, Any]


def close(row: Row, what: str) -> bool:
    """Whether our results are as near to float64 as eager's; True where there are none."""
    allowed = max(row["allowed"], TIMES * row[f"{what}_eager_error"])
    return row.get(f"{what}_ours_error", 0.0) <= allowed


def verdict(row: Row) -> str:
    if "skip" in row:
        return "skipped"
    failed = ("eval_ours_fails", "train_ours_fails", "graphs_fails")
    if said_by_ours := {row[key] for key in failed if key in row}:
        eager = {row.get("eval_compiling_fails"), row.get("train_compiling_fails")}
        return "raises" if said_by_ours <= eager else "FAILS"
    said = [verdict_of(row, what) for what in STEPS if f"{what}_eager_error" in row]
    if any(f"{what}_not_compiled" in row for what in STEPS):
        said.append("captured")
    for worst in ("WRONG", "captured", "differs", "rounding"):
        if worst in said:
            return worst
    return "ok" if row.get("done") else "cut off"


def verdict_of(row: Row, what: str) -> str:
    if close(row, what):
        return "ok"
    exact = row.get(f"{what}_float64_error")
    if exact is None:  # eager has no float64 result
        return "differs"
    return "rounding" if exact <= ALLOWED_EXACT else "WRONG"


HEAD = (
    f"{'model':28s} {'step':5s} {'':8s} {'graphs':>7s} "
    f"{'err eager':>9s} {'err ours':>9s} {'err peer':>9s} {'s ours':>7s} {'s peer':>7s} "
    f"{'ms eager':>8s} {'ms ours':>8s} {'ms peer':>8s}"
)
COLUMNS = (
    ("eager_error", "9.1e"), ("ours_error", "9.1e"), ("peer_error", "9.1e"),
    ("ours_seconds", "7.1f"), ("peer_seconds", "7.1f"),
    ("eager_ms", "8.2f"), ("ours_ms", "8.2f"), ("peer_ms", "8.2f"),
)  # fmt: skip


def lines_of(row: Row) -> Iterator[str]:
    graphs = f"{row.get('ours_graphs', -1):3d}/{row.get('peer_graphs', -1):3d}"
    for what in (what for what in STEPS if f"{what}_eager_error" in row):
        cells = (format(row.get(f"{what}_{key}", float("nan")), how) for key, how in COLUMNS)
        yield " ".join((f"{row['name']:28s} {what:5s} {verdict(row):8s} {graphs}", *cells))


def reasons_of(row: Row) -> Iterator[str]:
    """First lines of what failed or differs."""
    for key, text in row.items():
        if key.endswith("_fails") and not key.endswith(("_exact_fails", "_eager_fails")):
            yield f"{row['name']}: {key.removesuffix('_fails')}: {text}"
        if key.endswith("_float64_error") and verdict(row) == "WRONG":
            yield f"{row['name']}: {key}: {text:.1e}"
    if "crash" in row:
        yield f"{row['name']}: {row['crash']}"


def ratio(rows: list[Row], above: str, below: str) -> str:
    values = [row[above] / max(row[below], 1e-6) for row in rows if above in row and below in row]
    if not values:
        return ""
    return f"{above} / {below}: median {statistics.median(values):.2f} of {len(values)}"


def report(rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: row["name"])
    print(f"\ntorch {torch.__version__}\n{HEAD}")
    for line in (line for row in rows for line in lines_of(row)):
        print(line)
    counts: dict[str, int] = {}
    for row in rows:
        counts[verdict(row)] = counts.get(verdict(row), 0) + 1
    print("\n" + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    ran = [row for row in rows if row.get("ours_graphs", -1) >= 0]
    ours, peer = (sum(row.get(f"{kind}_graphs") == 1 for row in ran) for kind in ("ours", "peer"))
    print(f"one graph: ours {ours}, peer {peer} of {len(ran)}")
    pairs = (("ours_seconds", "peer_seconds"), ("eager_ms", "ours_ms"), ("peer_ms", "ours_ms"))
    for what in STEPS:
        lines = (ratio(rows, f"{what}_{above}", f"{what}_{below}") for above, below in pairs)
        print(*filter(None, lines), sep="\n")
    print(*(line for row in rows for line in reasons_of(row)), sep="\n")
    print("skipped:", *(row["name"] for row in rows if "skip" in row))
