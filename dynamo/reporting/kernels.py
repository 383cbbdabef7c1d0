"""What became of graphs below capture: parts (forward, backward), their kernels, times, memory.

In: the launchers that live, and what was recorded of their making. Out: `Part`s. Of a graph that
came from the disk cache all is there but the loop IR; times are there while they are kept
(`DYNAMO_REPORT`, `dynamo.profile`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo.backends.services import loaded_service
from dynamo.base import recordings


@dataclass(frozen=True)
class Step:
    """A kernel or a call of a library. moved, operations: bytes and arithmetic at least, 0 where
    they are not known. calls, seconds: while times were kept; fastest: seconds of the fastest.
    functions: on a GPU, Triton's."""

    title: str
    kernel: str
    kind: str
    lines: tuple[tuple[str, int], ...]
    moved: int
    operations: int
    calls: int = 0
    seconds: float = 0.0
    fastest: float = 0.0
    code: str = ""
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Life:
    """A buffer in the arena: bytes from `begin` on, from step `first` to step `last`."""

    begin: int
    bytes: int
    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Part:
    """One compiled graph. key: of the compile (region, id); part: "" or "backward". spans: of its
    last timed call, (step, begin, end) in seconds of `time.perf_counter`."""

    title: str
    key: tuple[int, str]
    part: str
    place: str
    steps: tuple[Step, ...]
    device: str = "cpu"
    arena: int = 0
    lives: tuple[Life, ...] = ()
    spans: tuple[tuple[int, float, float], ...] = ()
    loops: str = ""
    fused: str = ""
    refusals: tuple[tuple[str, str, str], ...] = ()

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest call of each step."""
        return sum(step.fastest for step in self.steps)


def parts(with_code: bool = True) -> list[Part]:
    """All compiled graphs that live, in the order in which they were made."""
    launch, launched = loaded_service("launcher"), loaded_service("launched")
    if launch is None or launched is None:  # that backend has not worked
        return []
    made = {id(record.data.steps): record.data for record in recordings.recorded("lowered")}
    found = [_part(launcher, launched, made, with_code) for launcher in launch.launchers()]
    recorded = loaded_service("gpu_records")
    on_gpu = () if recorded is None else list(recorded.gpu_records)
    return found + [_on_gpu(record, launched.title_of(record.compile), made) for record in on_gpu]


def _part(
    launcher: Any, launched: Any, made: Mapping[int, Any], with_code: bool
) -> Part:
    spec: dict[str, Any] = launcher.spec
    rows = spec.get("steps", ())
    times, stamps = launcher.times()
    codes = _codes(launcher.path, [row[2] for row in rows if row[2]]) if with_code else {}
    steps = []
    for row, (calls, nanoseconds, least) in zip(rows, times, strict=True):
        title, _, kernel, kind, _, moved, operations = row
        steps.append(Step(
            title, kernel, kind, _places(launched.lines_of_step(spec, row)), moved, operations,
            calls, nanoseconds * 1e-9, least * 1e-9, codes.get(kernel, "")))
    region, compile_id, part = spec.get("compile", (0, "", ""))
    recorded = made.get(id(spec.get("rows", rows)))
    return Part(
        spec["name"], (region, compile_id), part, spec.get("place", ""), tuple(steps),
        arena=spec["arena_bytes"], lives=tuple(_lives(spec)), spans=_spans(stamps),
        **({} if recorded is None else _loops(recorded)))


def _on_gpu(record: Any, title: str, made: Mapping[int, Any]) -> Part:
    what = record.compile
    functions: dict[str, list[str]] = {}
    for function, kernel in record.functions.items():
        functions.setdefault(kernel, []).append(function)
    steps = tuple(
        Step(name, kernel, kind, _places(lines), moved, operations,
             functions=tuple(functions.get(kernel, ())))
        for name, _, kernel, kind, lines, moved, operations in record.steps)
    recorded = made.get(id(record.steps))
    return Part(title, (what.region, what.id), what.part, "", steps, "cuda",
                **({} if recorded is None else _loops(recorded)))


def _loops(recorded: Any) -> dict[str, Any]:
    return {"loops": recorded.loops, "fused": f"{recorded.fused}\n{recorded.text}",
            "refusals": recorded.refusals}


def _places(lines: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """`file:line` as a pair."""
    pairs = (line.rpartition(":") for line in lines)
    return tuple((file, int(number)) for file, _, number in pairs if number.isdigit())


def _lives(spec: Mapping[str, Any]) -> Iterator[Life]:
    for slot, first, last, size in spec.get("lives", ()):
        kind, position, dtype, shape, _ = spec["slots"][slot]
        if kind == "arena" and type(size) is int:
            text = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
            yield Life(position, size, first, last, text)


def _spans(stamps: Sequence[tuple[int, int]]) -> tuple[tuple[int, float, float], ...]:
    pairs = zip(stamps, stamps[1:], strict=False)
    return tuple((step, begin * 1e-9, end * 1e-9) for (step, begin), (_, end) in pairs if step >= 0)


# -- C++ ------------------------------------------------------------------------------------------


def _codes(library: str, kernels: Sequence[str]) -> dict[str, str]:
    """The generated functions of each kernel, out of the files beside the library."""
    path = Path(library)
    texts = []
    for file in sorted(path.parent.glob(f"{path.stem}*.cpp")):
        try:
            texts.append(file.read_text())
        except OSError:  # pruned, or somebody else's: the page goes without
            continue
    found: dict[str, str] = {}
    for name, function in _functions("\n".join(texts)):
        kernel = name.partition("_part")[0]
        if kernel in kernels:
            found[kernel] = f"{found.get(kernel, '')}{function}\n"
    return found


# A generated function begins in the first column, and ends with a brace there.
FUNCTION = re.compile(
    r"^(?:static |extern |__attribute__\(\(\w+\)\) )*(?:void|int) (\w+)\([^;{}]*\) \{\n.*?^\}\n",
    re.MULTILINE | re.DOTALL)


def _functions(text: str) -> Iterator[tuple[str, str]]:
    return ((match[1], match[0]) for match in FUNCTION.finditer(text))
