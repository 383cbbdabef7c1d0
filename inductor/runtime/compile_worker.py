"""What the processes do that compile Triton functions: see `inductor.runtime.compile_jobs`.

Importing torch takes longer than compiling what a model needs, so it is not imported there: of a
generated file only the Triton functions are looked at, and what else it imports is a `StandIn`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dynamo.base.compiled_kernels import WARP, is_simple
from inductor.runtime.modules import import_file
from inductor.runtime.ptx import install_unpacking

SOME_NUMBER = 2  # stands for any in a compile
CONVERSIONS = "inductor.codegen.triton.conversions"
# What generated files import beside Triton and the functions that their kernels call.
OF_WRAPPERS = ("torch", "inductor.runtime.list_launches", "inductor.runtime.triton_launch")
Target = tuple[str, int, int]  # backend, capability and width of a warp, as `GPUTarget` takes them
_loaded: dict[str, Any] = {}  # modules of generated files


@dataclass(frozen=True, slots=True)
class Job:
    """A function of a generated file, for tensors of these dtypes (their names) at multiples of 16
    bytes, with so many numbers behind them. options: constants and those of the compiler, with
    `num_warps`."""

    path: str
    module: str
    name: str
    dtypes: tuple[str, ...]
    numbers: int
    options: Mapping[str, Any]
    target: Target


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, the kernel's name in it, threads of a block and bytes of shared memory. It is empty
    where only Triton can start the kernel."""

    name: str
    cubin: bytes
    threads: int
    shared: int


class Nothing:
    """What a name of a `StandIn` is: it can be called and looked into, and gives itself."""

    def __call__(self, *args: Any, **keywords: Any) -> Nothing:
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class StandIn(ModuleType):
    """A module of which every name can be imported."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class NoDevice:
    """In place of Triton's driver: the target, and nothing that needs a GPU."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*self.target)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Dtype:
    """Has the text of one of torch's, which is what Triton goes by."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


def compile_job(job: Job) -> Compiled:
    """What Triton makes of it, which its cache on disk gets, too. Errors: Triton's."""
    from triton.runtime.jit import MockTensor

    compile_for(job.target)
    if job.path not in _loaded:
        _loaded[job.path] = import_file(job.module, Path(job.path))
    install_unpacking()
    function = getattr(_loaded[job.path], job.name)
    tensors = [MockTensor(Dtype(name)) for name in job.dtypes]
    numbers = [SOME_NUMBER] * job.numbers
    made = function.warmup(*tensors, *numbers, grid=(1, 1, 1), **job.options)
    cubin = made.asm.get("cubin")
    if type(cubin) is not bytes or not is_simple(made):
        cubin = b""
    return Compiled(made.name, cubin, job.options["num_warps"] * WARP, made.metadata.shared)


def prepare(given: tuple[Target, bool]) -> None:
    """Before the processes are forked: what a first compile takes longer for. given: the likely
    target, and what `e4m3_saturates` is."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target, saturates = given
    conversions = ModuleType(CONVERSIONS)
    conversions.e4m3_saturates = lambda: saturates  # type: ignore[attr-defined]
    sys.modules |= {CONVERSIONS: conversions} | {name: StandIn(name) for name in OF_WRAPPERS}
    first = importlib.import_module("inductor.codegen.triton.first_kernel")
    compile_for(target)
    install_unpacking()
    source = ASTSource(
        fn=first.first_kernel, signature={"out0": "*fp32", "XBLOCK": "constexpr"},
        constexprs={"XBLOCK": 128}, attrs={(0,): [["tt.divisibility", 16]]})
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        triton.compile(source, target=GPUTarget(*target), options={"num_warps": 4})


@functools.lru_cache(maxsize=1)
def compile_for(target: Target) -> None:
    """Put the target in place of a GPU."""
    from triton.runtime import driver

    driver.set_active(NoDevice(target))
