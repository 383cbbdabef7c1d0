"""Triton functions compiled by other processes: Triton holds Python's lock for most of its work, so
threads of one process hardly gain by each other.

In: a `Job`. Out: a `Compiled`, which the driver of this process loads. The other processes
(`inductor.runtime.compile_worker`) have no GPU; they are told for which one to compile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dynamo.base.processes import Failed, Processes
from inductor.codegen.triton.conversions import e4m3_saturates
from inductor.runtime.compile_worker import Compiled, Job, Target
from inductor.runtime.ptx import other_hooks

MOST = 32  # processes; chosen, not measured: bounds memory
FEWEST_CPUS = 4  # with fewer the processes' own imports take what they save; chosen, not measured
FEWEST = 4  # jobs for which others are asked; chosen, not measured
WORK = "inductor.runtime.compile_worker:compile_job"
READ = ("TRITON", "LLVM", "MLIR", "USE_IR_LOC", "DISABLE_", "ENABLE_", "CUDA_HOME", "PATH")


def processor_count() -> int:
    """How many are this process's, of those that it shares with other ranks on this machine."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")  # as torchrun says
    return len(os.sched_getaffinity(0)) // (int(ranks) if ranks.isdecimal() and int(ranks) else 1)


@functools.cache
def processes() -> Processes:
    """Those of this process."""
    target = target_of(torch.device("cuda", torch.cuda.current_device()))
    return Processes(
        WORK, min(MOST, processor_count()), settings, bare=("dynamo", "inductor"),
        given=(target, e4m3_saturates()))


def settings() -> Mapping[str, str]:
    """Variables of the environment that Triton, and what it calls, may read."""
    return {name: value for name, value in os.environ.items() if name.startswith(READ)}


def are_worth_it() -> bool:
    """Whether other processes would give what this one does, and sooner: cubins, which the driver
    loads."""
    # of a program that holds Python inside, another copy of the program would start
    has_python = os.path.basename(sys.executable or "").startswith("python")
    return (has_python and not getattr(sys, "frozen", False) and torch.version.hip is None
            and processor_count() >= FEWEST_CPUS and not other_hooks())


def begin() -> None:
    """Start the processes, where kernels for a GPU are likely to be compiled soon."""
    if torch.cuda.is_initialized() and are_worth_it():
        processes().begin()


def target_of(device: torch.device) -> Target:
    """What Triton compiles for on this device, as a `Job` has it."""
    from triton.runtime import driver

    with torch.cuda.device(device):
        target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def compiled(
    jobs: Sequence[Job], meanwhile: Callable[[int], Any]
) -> Iterator[tuple[int, Compiled | Failed | Any]]:
    """What comes of each job, by its number, as they get done; see `Processes.results`."""
    return processes().results(jobs, meanwhile)
