"""Triton functions compiled by other processes: Triton holds Python's lock for most of its work, so
threads of one process hardly gain by each other.

In: a `Job`. Out: a `Binary`, which the driver of this process loads. The other processes have no
GPU; they are told for which one to compile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamo.base.processes import Failed, Processes
from inductor.runtime.binaries import Binary, binary_of
from inductor.runtime.modules import import_file
from inductor.runtime.ptx import install_unpacking, other_hooks
from inductor.runtime.triton_binary import WARP

MOST = 32  # processes; chosen, not measured: bounds memory
FEWEST_CPUS = 4  # with fewer the processes' own imports take what they save; chosen, not measured
FEWEST = 4  # jobs for which others are asked; chosen, not measured
READ = ("TRITON", "LLVM", "MLIR", "USE_IR_LOC", "DISABLE_", "ENABLE_", "CUDA_HOME", "PATH")
SOME_NUMBER = 2  # stands for any in a compile
_loaded: dict[str, Any] = {}  # modules of generated files, in the other processes


@dataclass(frozen=True, slots=True)
class Job:
    """A function of a generated file, for tensors of these dtypes at multiples of 16 bytes, with so
    many numbers behind them. options: constants and those of the compiler, with `num_warps`.
    target: backend, capability and width of a warp, as Triton's `GPUTarget` takes them."""

    path: str
    module: str
    name: str
    dtypes: tuple[torch.dtype, ...]
    numbers: int
    options: Mapping[str, Any]
    target: tuple[str, int, int]


class NoDevice:
    """In place of Triton's driver: the target, and nothing that needs a GPU."""

    def __init__(self, target: tuple[str, int, int]) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*self.target)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_job(job: Job) -> Binary | Failed:
    """In another process: what Triton makes of it, which its cache on disk gets, too. Failed for
    what only Triton can start. Errors: Triton's."""
    _compile_for(job.target)
    if job.path not in _loaded:
        _loaded[job.path] = import_file(job.module, Path(job.path))
    install_unpacking()
    function = getattr(_loaded[job.path], job.name)
    numbers = [SOME_NUMBER] * job.numbers
    made = function.warmup(*job.dtypes, *numbers, grid=(1, 1, 1), **job.options)
    return binary_of(made, job.options["num_warps"] * WARP) or Failed("Triton has to start it")


@functools.lru_cache(maxsize=1)
def _compile_for(target: tuple[str, int, int]) -> None:
    from triton.runtime import driver

    driver.set_active(NoDevice(target))


def prepare(target: tuple[str, int, int]) -> None:
    """Before the processes are forked: what a first compile for this target takes longer for."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from inductor.runtime.first_kernel import first_kernel

    _compile_for(target)
    install_unpacking()
    source = ASTSource(
        fn=first_kernel, signature={"out0": "*fp32", "XBLOCK": "constexpr"},
        constexprs={"XBLOCK": 128}, attrs={(0,): [["tt.divisibility", 16]]})
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        triton.compile(source, target=GPUTarget(*target), options={"num_warps": 4})


@functools.cache
def processes() -> Processes:
    """Those of this process."""
    count = min(MOST, len(os.sched_getaffinity(0)))
    device = torch.device("cuda", torch.cuda.current_device())
    return Processes(f"{__name__}:compile_job", count, settings, bare=("dynamo", "inductor"),
                     given=target_of(device))


def settings() -> Mapping[str, str]:
    """Variables of the environment that Triton, and what it calls, may read."""
    return {name: value for name, value in os.environ.items() if name.startswith(READ)}


def are_worth_it() -> bool:
    """Whether other processes would give what this one does, and sooner."""
    return (bool(sys.executable) and len(os.sched_getaffinity(0)) >= FEWEST_CPUS
            and not other_hooks())


def begin() -> None:
    """Start the processes, where kernels for a GPU are likely to be compiled soon."""
    if torch.cuda.is_initialized() and are_worth_it():
        processes().begin()


def target_of(device: torch.device) -> tuple[str, int, int]:
    """What Triton compiles for on this device, as a `Job` has it."""
    from triton.runtime import driver

    with torch.cuda.device(device):
        target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def binaries(jobs: Sequence[Job], meanwhile: Any) -> Iterator[tuple[int, Binary | Failed]]:
    """What comes of each job, by its number, as they get done; see `Processes.results`."""
    return processes().results(jobs, meanwhile)
