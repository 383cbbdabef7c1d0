"""`python -m dynamo.doctor`: what this machine offers to the compiler, and what to do about gaps.

In: the machine. Out: findings, each with advice where something is missing or slow.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamo.api import compile, reset
from dynamo.base import counters, terminal
from dynamo.base.config import config

SIDE = 768  # of the matrices that GEMMs are measured with
SECONDS = 0.3
SETS = ("avx512f", "avx512_bf16", "amx_tile", "avx2", "fma", "sve", "asimd")


@dataclass(frozen=True)
class Finding:
    """what: the part; text: what was found; advice: what to do, "" where all is well."""

    what: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        mark = "!" if self.advice else " "
        line = f"{mark} {self.what:20} {self.text}"
        return f"{line}\n  {'':20} What to do: {self.advice}" if self.advice else line

    def __rich__(self) -> Any:
        """The same for rich: long texts stay in their column."""
        text = terminal.rich_module("text").Text
        made = terminal.rich_module("table").Table.grid(padding=(0, 1), expand=True)
        made.add_column(width=1)
        made.add_column(width=20)
        made.add_column(ratio=1)
        made.add_row(text("!" if self.advice else "", "bold yellow"),
                     text(self.what, "bold" if self.advice else "green"), text(self.text))
        if self.advice:
            made.add_row("", "", text(f"What to do: {self.advice}", "yellow"))
        return made


def examine() -> Iterator[Finding]:
    """All findings, as they are made."""
    yield Finding("versions", f"Python {platform.python_version()}, torch {torch.__version__}")
    yield from _compiler()
    yield _instructions()
    yield Finding("threads", f"{torch.get_num_threads()} of {len(os.sched_getaffinity(0))} cores",
                  "" if torch.get_num_threads() > 1 or len(os.sched_getaffinity(0)) == 1
                  else "torch runs on one thread: unset OMP_NUM_THREADS, or raise it.")
    yield from _gemms()
    yield from _gpu()
    yield _cache()
    yield from _small_compile()


def _compiler() -> Iterator[Finding]:
    toolchain = importlib.import_module("dynamo.store.toolchain")
    store = importlib.import_module("dynamo.store.content")
    with tempfile.TemporaryDirectory() as folder:  # asked anew, not remembered
        found = toolchain.find_toolchain(store.Store(Path(folder)))
    if isinstance(found, str):
        yield Finding("C++ compiler", found, "install g++ or clang++, or name another compiler by "
                      'CXX=...; until then backend="eager" works, and what is in the cache.')
        return
    yield Finding("C++ compiler", f"{found.compiler}: {found.version}")
    yield Finding("headers", "none are needed: generated code includes nothing")
    if "-fopenmp" in found.compile_flags:
        yield Finding("OpenMP", "yes")
    else:
        yield Finding("OpenMP", "no", "kernels run on one thread: install libgomp (part of "
                      "g++; clang++ uses that of g++, too).")
    if "-lmvec" not in found.libraries:
        yield Finding("vector math", "no libmvec", "exp, sin and their like are slower: glibc on "
                      "x86-64 has it.")


def _instructions() -> Finding:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Finding("instruction set", platform.machine())
    name = next((line.partition(":")[2].strip() for line in text.splitlines()
                 if line.startswith(("model name", "Model"))), platform.machine())
    words = set(text.split())
    have = [one for one in SETS if one in words]
    return Finding("instruction set", f"{name}: {', '.join(have) or 'none that is known here'}")


def _gemms() -> Iterator[Finding]:
    """GFLOP/s of the libraries that GEMMs may go to."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    candidates: dict[str, Callable[[], Any]] = {"MKL or BLAS (mm)": lambda: torch.mm(a, b)}
    if torch.backends.mkldnn.is_available():
        linear = torch.ops.mkldnn._linear_pointwise
        candidates["oneDNN"] = lambda: linear(a, b, None, "none", [], "")
    speeds = {name: _gflops(candidate) for name, candidate in candidates.items()}
    best = max(speeds.values())
    for name, speed in speeds.items():
        slow = "" if speed > best / 2 else "; slow here, so the other one is taken"
        yield Finding(name, f"{speed:.0f} GFLOP/s (float32, {SIDE} x {SIDE}){slow}")


def _gflops(candidate: Callable[[], Any]) -> float:
    candidate()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        candidate()
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best / 1e9


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        driver = Path("/proc/driver/nvidia/version").exists()
        yield Finding("GPU", "none" if not driver else "a driver, but torch sees no GPU",
                      "install a torch that is built for CUDA." if driver and not built else "")
    else:
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            yield Finding(f"GPU {number}", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, "
                          f"CUDA {torch.version.cuda}")
    there = importlib.util.find_spec("triton") is not None
    if there:
        yield Finding("Triton", importlib.import_module("triton").__version__)
    else:
        needed = torch.cuda.is_available()
        yield Finding("Triton", "not installed",
                      "pip install triton: kernels on the GPU need it." if needed else "")


def _cache() -> Finding:
    folder = Path(config.cache_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Finding("cache folder", f"{folder} can't be written: {error}",
                       "name another folder by DYNAMO_CACHE_DIR=...; until then nothing is kept.")
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    mode = folder.stat().st_mode & 0o777
    text = (f"{folder} (mode {mode:o}), {len(files)} files, "
            f"{sum(file.st_size for file in files) / 2**20:.1f} MiB")
    return Finding("cache folder", text, "" if not mode & 0o022 else
                   f"others may write code there that you run: chmod go-w {folder}")


def _small_compile() -> Iterator[Finding]:
    """Two operations, with an empty cache."""
    scope: dict[str, Any] = {"__name__": "two_operations"}  # code of this package is not traced
    exec("def two_operations(x, y):\n    return (x + y).relu()", scope)
    before = counters.compile_times()
    with tempfile.TemporaryDirectory() as folder, config.patch(cache_dir=folder):
        start, graphs = time.perf_counter(), counters.counters["stats"]["graphs"]
        try:
            found = compile(scope["two_operations"], fullgraph=True)(torch.ones(64), torch.ones(64))
        except Exception as error:
            yield Finding("two operations", f"{type(error).__name__}: {error}",
                          "what is marked above, and try again.")
            return
        total = time.perf_counter() - start
    if counters.counters["stats"]["graphs"] == graphs:
        yield Finding("two operations", "nothing was compiled",
                      "take away what turns the compiler off (DYNAMO_DISABLE, a stance).")
        return
    if not torch.equal(found, torch.full((64,), 2.0)):
        yield Finding("two operations", "compiled, the result is wrong",
                      "write a report with this page; backend=\"aot_eager\" until then.")
        return
    stages = {s: t - before.get(s, 0.0) for s, t in counters.compile_times().items()}
    text = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in stages.items()
                     if seconds > 0.0005)
    yield Finding("two operations", f"{total:.2f} s with an empty cache ({text})")
    reset()


def main() -> int:
    """Prints the findings; 1 where one has advice."""
    marked = 0
    for finding in examine():
        terminal.show(finding)
        sys.stdout.flush()
        marked += bool(finding.advice)
    print(f"{marked} to look at" if marked else "all is well")
    return 1 if marked else 0


if __name__ == "__main__":
    sys.exit(main())
