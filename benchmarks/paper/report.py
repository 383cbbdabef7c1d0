"""A table as Markdown and JSON, with the machine and the versions that it comes from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
RESULTS = Path("dynamo_results")  # of the folder in which the run was started
PUBLISHED = Path(__file__).parents[2] / "docs" / "results"
CORES = 2  # of a slot
PACKAGES = ("torch", "transformers", "timm", "torchvision", "triton")
ENGINES = ("onnxruntime", "openvino")  # of the tables that measure them
WITH_ENGINES = ("table3",)


def machine(cuda: bool, slots: int = 0, name: str = "") -> dict[str, Any]:
    """slots: see `slots.py`; the counts of cores and threads are those of one of them. name: of the
    table."""
    found: dict[str, Any] = {
        "processor": _processor(), "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(), "python": platform.python_version(),
    }  # fmt: skip
    if slots:
        found.update(cores=CORES, threads=CORES, slots=f"{slots} on {found['cores']} cores")
    if cuda and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    for package in (*PACKAGES, *(ENGINES if name in WITH_ENGINES else ())):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["torch"] = torch.__version__
    return found


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines()
             if line.startswith("model name")]  # fmt: skip
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    wide = [word for word in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if f" {word}" in flags]
    return f"{names[0] if names else platform.machine()} ({', '.join(wide)})"


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value).replace("|", "\\|")


def markdown(
    title: str, about: str, rows: Sequence[Row], notes: Sequence[str], where: dict[str, Any],
    command: str,
) -> str:
    """The rows as a table, then what they come to, then what was not run."""
    good = [row for row in rows if "skipped" not in row]
    columns = list(dict.fromkeys(column for row in good for column in row))
    lines = [f"# {title}", "", about, "", f"`{command}`", "", ", ".join(
        f"{name} {value}" for name, value in where.items()), ""]  # fmt: skip
    if good:
        lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        lines += ["| " + " | ".join(shown(row.get(c)) for c in columns) + " |" for row in good]
    lines += ["", *(f"- {note}" for note in notes)]
    lines += not_run(rows)
    return "\n".join(lines).rstrip() + "\n"


def not_run(rows: Sequence[Row]) -> list[str]:
    """A line for each reason, and for each kind, with the models."""
    models: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "skipped" in row:
            models.setdefault((row.get("kind", ""), row["skipped"]), []).append(row["model"])
    return [f"- not run{kind and f', {kind}'}: {', '.join(names)}: {why}"
            for (kind, why), names in models.items()]  # fmt: skip


def known_rows(
    name: str, cuda: bool, size: str, folder: Path = RESULTS, slots: int = 0
) -> list[Row]:
    """The rows that were written before: on this machine, with these versions, at this size."""
    path = folder / (f"{name}-cuda.json" if cuda else f"{name}.json")
    if not path.exists():
        return []
    known = json.loads(path.read_text())
    other = () if name in WITH_ENGINES else ENGINES
    where = {fact: value for fact, value in known["machine"].items() if fact not in other}
    same = where == machine(cuda, slots, name) and known.get("size") == size
    rows: list[Row] = known["rows"] if same else []
    return rows


def write(
    name: str, title: str, about: str, rows: Sequence[Row], notes: Sequence[str], cuda: bool,
    command: str, folder: Path = RESULTS, size: str = "", slots: int = 0,
) -> str:
    """Writes both files and gives the Markdown. A run that is killed leaves whole files."""
    where = machine(cuda, slots, name)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-cuda" if cuda else name
    data = {"table": name, "command": command, "size": size, "machine": where,
            "notes": list(notes), "rows": list(rows)}  # fmt: skip
    text = markdown(title, about, rows, notes, where, command)
    for ending, content in (("json", json.dumps(data, indent=1) + "\n"), ("md", text)):
        part = folder / f"{stem}.{ending}.part"
        part.write_text(content)
        part.replace(folder / f"{stem}.{ending}")
    return text
