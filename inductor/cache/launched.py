"""What the launchers of one compile were made of, for whoever keeps compiled graphs.

A launcher is native code and a description. While a compile is `watched`, each that it loads is
noted with the library's file and digest, and the operators that fell back to ATen with it; from the
file, the digest and the description another process makes the same launcher, if the file still is
what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynamo.base import logs
from dynamo.base.extension import BUILD
from dynamo.base.fallbacks import site_now
from dynamo.base.user_lines import user_frame
from dynamo.store.content import Stale, Store, is_owned_by_user, note_used
from dynamo.store.toolchain import Toolchain, find_toolchain, last_toolchain
from inductor.kernels.cpu.attention.library import load_attention
from inductor.kernels.cpu.attention.source import attention_name
from inductor.kernels.cpu.convolution import CONVOLUTION_NAME
from inductor.kernels.cpu.convolution_library import Convolver, load_convolver
from inductor.kernels.cpu.gemm import GEMM_NAME
from inductor.kernels.cpu.gemm_libraries import OwnGemm, load_gemm
from inductor.kernels.cpu.half_gemm import HALF_NAME
from inductor.runtime import _launch

LINES = 4  # the place of the user's lines in a row of steps, see `codegen/step_facts.py`
RUNTIME = 2  # what `csrc/launcher.h` has to be for code that is generated now

if getattr(_launch, "runtime_version", 1) != RUNTIME:
    raise ImportError(
        "dynamo-jit: the extension inductor.runtime._launch was built from other sources than "
        f"these; {BUILD}.")


@dataclass(frozen=True, slots=True)
class Launch:
    """name: the library's file in the store. calls: functions of our libraries that it calls."""

    name: str
    digest: str
    spec: dict[str, Any]
    calls: tuple[str, ...]


@dataclass(slots=True)
class Watched:
    """What a compile has loaded (launchers with what made them), and its fallbacks to ATen."""

    launches: list[tuple[Any, str, dict[str, Any], tuple[str, ...]]] = field(default_factory=list)
    fallbacks: list[tuple[str, str]] = field(default_factory=list)

    def launch_of(self, launcher: Any, store: Store) -> Launch | None:
        """How a launcher is made again; None for one of another compile."""
        for known, path, spec, calls in self.launches:
            if known is launcher:
                name = str(Path(path).relative_to(store.root))
                return Launch(name, digest_of(Path(path)), spec, calls)
        return None


_watched: ContextVar[Watched | None] = ContextVar("watched", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """What this thread compiles inside."""
    seen = Watched()
    token = _watched.set(seen)
    try:
        yield seen
    finally:
        _watched.reset(token)


def note_launcher(launcher: Any, path: str, spec: dict[str, Any], units: list[str]) -> None:
    """A launcher was made of a library that was built of these texts."""
    seen = _watched.get()
    if seen is not None:
        calls = tuple(name for name in OWN_FUNCTIONS if any(name in unit for unit in units))
        seen.launches.append((launcher, path, spec, calls))


# -- what profilers and reports show ----------------------------------------------------------


def title_of(what: logs.Compile) -> str:
    """What a profiler calls a graph of a compile: `Net.forward 0/0`, and behind a break in line 12
    `f from line 12 1/0`; `graph` outside of a compile."""
    if not what.id:
        return "graph"
    name = re.sub(r"^__resume_(\d+)_(.*)", r"\2 from line \1", what.name)
    return f"{name} {what}"


def titled(spec: Mapping[str, Any], what: logs.Compile | None = None) -> dict[str, Any]:
    """The description with whose it is. what: the compile, by default that of this thread."""
    what = what or logs.compile_now()
    return {**spec, "name": title_of(what), "place": site_now().place,
            "compile": (what.region, what.id, what.part)}


def with_numbers(spec: Mapping[str, Any], traces: Sequence[str | None]) -> dict[str, Any]:
    """The description with its steps' lines as positions among nodes of the captured graph, whose
    stack traces are given: in another program the same graph stands on other lines."""
    places: dict[str, int] = {}
    for number, trace in enumerate(traces):
        frame = user_frame(trace)
        if frame is not None:
            places.setdefault(f"{frame[0]}:{frame[1]}", number)
    rows = []
    for row in spec.get("steps", ()):
        numbers = tuple(places[line] for line in row[LINES] if line in places)
        rows.append((*row[:LINES], numbers, *row[LINES + 1:]))
    return {**spec, "steps": rows}


def lines_of_step(spec: Mapping[str, Any], row: Sequence[Any]) -> tuple[str, ...]:
    """The user's lines, `file:line`, of a row of the description's steps."""
    traces: Sequence[str | None] = spec.get("traces", ())
    lines: dict[str, None] = {}
    for line in row[LINES]:
        frame = user_frame(traces[line]) if isinstance(line, int) else None
        lines[f"{frame[0]}:{frame[1]}" if frame else str(line)] = None
    return tuple(lines)


def note_fallbacks(operators: Sequence[tuple[str, str]]) -> None:
    """Operators of the graph fell back to ATen, with the reasons."""
    seen = _watched.get()
    if seen is not None:
        seen.fallbacks += operators


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def loaded_launch(
    name: str, digest: str, calls: Sequence[str], spec: dict[str, Any], store: Store,
    traces: Sequence[str | None],
) -> Any:
    """The launcher, see `Launch`. traces: see `with_numbers`. Errors: Stale."""
    path = library_of(name, digest, calls, store)
    return _launch.Launcher(path, {**titled(spec), "traces": traces})


def library_of(name: str, digest: str, calls: Sequence[str], store: Store) -> str:
    """The path of a library, see `Launch`; what it calls is loaded. Errors: Stale."""
    path = store.root / name
    if not is_owned_by_user(path) or digest_of(path) != digest:
        raise Stale(f"the library {name} is not there, or is another one")
    note_used(path)
    for function in calls:
        OWN_FUNCTIONS[function](store)
    return str(path)


def _toolchain(store: Store) -> Toolchain:
    """The compiler that has built what is in the store, or the one that is there now. Errors:
    Stale."""
    toolchain = last_toolchain(store) or find_toolchain(store)
    if isinstance(toolchain, str):
        raise Stale(toolchain)
    return toolchain


def own_gemm_of(dtype: torch.dtype, store: Store) -> OwnGemm:
    """Our own GEMM, for cached graphs that need it. Errors: Stale."""
    gemm = load_gemm(store, _toolchain(store), dtype)
    if gemm is None:
        raise Stale(f"this processor has no GEMMs of {dtype}")
    return gemm


def convolver_of(store: Store) -> Convolver:
    """The same of our own convolution. Errors: Stale."""
    return load_convolver(store, _toolchain(store))


def attention_of(half: bool, store: Store) -> None:
    """The same of our own attention; without a compiler, the operator computes it."""
    with contextlib.suppress(Stale):
        load_attention(store, _toolchain(store), half)


OWN_FUNCTIONS: Mapping[str, Callable[[Store], Any]] = {
    GEMM_NAME: partial(own_gemm_of, torch.float32),
    HALF_NAME: partial(own_gemm_of, torch.bfloat16),
    CONVOLUTION_NAME: convolver_of,
    **{attention_name(half): partial(attention_of, half) for half in (False, True)},
}
