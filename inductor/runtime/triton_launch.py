"""Runs Triton functions with little overhead, and what else generated Python wrappers need.

A generated module hands each of its Triton functions to `Preparation.prepare` and gets a
`Launcher`; `Launcher.at` binds it to grids, and to the numbers that its parameters after the
tensors take, and gives a `KernelCall`, which is called with a stream and tensors. The first call
asks Triton for the kernel; it picks (or measures) a config. Later calls hand addresses straight to
the driver (`csrc/gpu.cpp`), unless a tensor lies at an address that the kernel was not compiled for
(no multiple of 16 bytes): that asks Triton again. Numbers are never compiled in: what the first
call has compiled is there for all other numbers.
"""

from __future__ import annotations

import contextvars
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.autograd import profiler

from dynamo.aot.boxed import with_list
from dynamo.base import logs
from dynamo.base.fallbacks import AT
from dynamo.base.signals import is_of_signal
from dynamo.base.waiting import in_threads, while_waiting, work_now
from inductor import metrics
from inductor.codegen.triton.numbers import EVEN
from inductor.runtime import compile_jobs
from inductor.runtime._launch import Allocation as Allocation
from inductor.runtime._launch import KernelCall, Placeholder, Program
from inductor.runtime._launch import OperatorCall as OperatorCall
from inductor.runtime.binaries import Binary, Later, NotLoaded, Started, binary_of, start_of
from inductor.runtime.compile_worker import SOME_NUMBER, Compiled, Job, Target
from inductor.runtime.graph_functions import graph_functions
from inductor.runtime.ptx import OPTIONS, install_unpacking
from inductor.runtime.triton_binary import (
    WARP,
    driver_launch,
    function_of,
    is_simple,
    load,
    run,
    start,
)
from inductor.runtime.triton_binary import (
    current_stream as current_stream,
)

Choice = tuple[int, int, int]  # XBLOCK, RBLOCK, warps
Grid = tuple[int, int, int]
ALIGNED = 15  # bits of an address that are 0 where Triton may move 16 bytes at a time
MEASURED_RUNS = 5  # of a candidate, timed together; chosen, not measured
VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def view(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A view over the memory of a tensor; `offset` counts from its first element."""
    if type(tensor) is Placeholder:
        placeholder: Any = tensor
        return placeholder.view(size, stride, offset, dtype)  # type: ignore[no-any-return]
    if dtype is not None:
        tensor = tensor.view(dtype)
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def recorded(
    of_list: Callable[[list[Any]], Any], inputs: int, device: torch.device, batched: bool = False
) -> Callable[[list[Any]], Any]:
    """A wrapper's function of so many tensors as a program that runs without Python: it calls
    nothing but what `_launch` has, and does the same in each call. batched: consecutive kernels
    are started together, where the driver can."""
    on_gpu = device.type == "cuda"
    stream = current_stream if on_gpu else None
    graphs = graph_functions() if batched and on_gpu else None
    program: Callable[[list[Any]], Any] = Program(
        of_list, inputs, stream, device.index or 0, graphs)
    return program


def without_views(of_list: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function with results that are no views for autograd, though they show buffers of other
    sizes: a view that was made without gradients can't be written once gradients are wanted."""

    def plain(args: list[Any]) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):
            return of_list(args)

    return plain


def boxed(of_list: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """The function of tensors out of that of a list which is emptied: see `dynamo.aot.boxed`."""

    def call(*args: Any) -> Any:
        return of_list([*args])

    return with_list(call, of_list)


def on_device(call: Callable[..., Any], index: int) -> Callable[..., Any]:
    """The call with that GPU as the current one."""
    of_list = getattr(call, "of_list", None)

    def guarded(*args: Any) -> Any:
        if torch._C._cuda_getDevice() == index:
            return call(*args)
        with torch.cuda.device(index):
            return call(*args)

    return with_list(guarded, None if of_list is None else on_device(of_list, index))


def named(call: Callable[..., Any], title: str) -> Callable[..., Any]:
    """The call in a range of this name while a profiler of torch's runs."""
    of_list = getattr(call, "of_list", None)

    def ranged(*args: Any) -> Any:
        if not profiler._is_profiler_enabled:
            return call(*args)
        with profiler.record_function(title):
            return call(*args)

    return with_list(ranged, None if of_list is None else named(of_list, title))


@dataclass(slots=True)
class Launcher:
    """One Triton function with its launch parameters; kinds: of its numbers, codes of `struct`.

    ahead: compiled with the module, not at the first call. chosen: the position of the choice that
    the first call made. even: positions of the numbers for whose being multiples of EVEN there is
    a kernel of its own. options: of a template, which has no blocks to choose. started: set by the
    first call with such numbers, or without, that others can follow. scratch: bytes of memory that
    come as a last tensor, for descriptors that the kernel makes of aligned tensors. compiled: what
    `warm_up` has compiled; made: what another process has.
    """

    function: Any
    choices: tuple[Choice, ...]
    dtypes: tuple[torch.dtype, ...]
    unsure: tuple[int, ...]
    asserts: bool
    measure: bool
    device: torch.device
    kinds: str
    even: tuple[int, ...] = ()
    likely_even: bool = False
    ahead: bool = True
    options: Mapping[str, Any] | None = None
    scratch: int = 0
    chosen: int | None = None
    started: dict[bool, Started] = field(default_factory=dict)
    compiled: Any = None
    made: Binary | None = None

    def at(self, grids: tuple[Grid, ...], numbers: tuple[float, ...] = ()) -> KernelCall:
        """What is called with a stream and tensors. grids: one for each choice."""
        slow = Bound(self, grids, numbers)
        packed = struct.pack(f"={self.kinds}", *numbers)
        count = len(self.dtypes) + (self.scratch != 0)
        slow.call = KernelCall(slow, count, self.unsure, packed)
        slow.follow()
        return slow.call

    def warm_up(self) -> Any:
        """Compile the default for aligned tensors of these dtypes."""
        choice = self.choices[0]
        numbers = [SOME_NUMBER] * len(self.kinds)
        with torch.cuda.device(self.device):
            options = self.keywords(choice, self.likely_even)
            made = self.function.warmup(*self.dtypes, *numbers, grid=(1, 1, 1), **options)
            if self.scratch:  # now: what is too large for the device shows here
                function_of(made)
            else:
                load(made)
            self.compiled = made
            return made

    def binary(self) -> Binary | None:
        """What is compiled, as bytes; None where there is nothing, or Triton has to start it."""
        if self.compiled is None:
            return self.made
        warps = self.keywords(self.choices[0], False)["num_warps"]
        if self.scratch:
            warps = self.compiled.metadata.num_warps
        return binary_of(self.compiled, warps * WARP, self.scratch != 0)

    def job(self, target: Target) -> Job:
        """What `warm_up` does, for another process."""
        function = self.function
        file = sys.modules[function.__module__].__file__
        assert file is not None
        options = self.keywords(self.choices[0], self.likely_even)
        dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return Job(file, function.__module__, function.__name__, dtypes, len(self.kinds), options,
                   target)

    def take(self, binary: Binary) -> None:
        """Start this from now on, which another process has compiled as `warm_up` does. Errors:
        NotLoaded."""
        self.started[self.likely_even and bool(self.even)] = start_of(binary, self.device)
        self.chosen, self.made = 0, binary

    def is_even(self, numbers: Sequence[float]) -> bool:
        """Whether these go with the kernel for multiples."""
        return bool(self.even) and all(numbers[position] % EVEN == 0 for position in self.even)

    def keywords(self, choice: Choice, is_even: bool) -> dict[str, Any]:
        """Constants and options; no contraction, denormals kept: the bits of eager's kernels."""
        blocks = {"XBLOCK": choice[0], "RBLOCK": choice[1], "num_warps": choice[2]}
        install_unpacking()
        return {
            "debug": self.asserts, "sanitize_overflow": False, "enable_fp_fusion": False,
            "enable_reflect_ftz": False, "ptx_options": OPTIONS,
            **({"IS_EVEN": is_even} if self.even else {}),
            **(blocks if self.options is None else self.options),
        }


@dataclass(frozen=True, slots=True)
class BySize:
    """Launchers of one function for classes of sizes. bounds: the greatest measure of each."""

    bounds: tuple[int, ...]
    launchers: tuple[Launcher, ...]

    def at(
        self, measure: int, grids: tuple[tuple[Grid, ...], ...], numbers: tuple[float, ...]
    ) -> KernelCall | None:
        """That of the launcher for `measure`; None where there is none (another function runs)."""
        position = bisect_left(self.bounds, measure)
        if position == len(self.bounds):
            return None
        return self.launchers[position].at(grids[position], numbers)


@dataclass(slots=True)
class Bound:
    """A launcher at grids and numbers: the slow way of a `KernelCall`.

    It is called with the tensors until it has told `call` of a compiled kernel.
    """

    launcher: Launcher
    grids: tuple[Grid, ...]
    numbers: tuple[float, ...]
    call: KernelCall | None = None

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run through Triton, and remember how, if this call is one that later ones can follow."""
        launcher = self.launcher
        if launcher.scratch and launcher.device.type == "cuda":
            self.with_descriptors(tensors)
            return
        aligned = not any(tensors[n].data_ptr() & ALIGNED for n in launcher.unsure)
        started = launcher.started.get(launcher.is_even(self.numbers))
        here = launcher.made is None and not isinstance(launcher.function, Later)
        if aligned and not here and started is not None:  # a thread that has no context yet
            grid = self.grids[launcher.chosen or 0]
            packed = struct.pack(f"={launcher.kinds}", *self.numbers)
            start((started.function, grid, started.threads, started.shared), tensors, packed)
            self.follow()
            return
        if launcher.chosen is None:
            launcher.chosen = self.measured(tensors) if launcher.measure else 0
        compiled = self.through_triton(tensors, launcher.chosen)
        if launcher.device.type == "cuda" and aligned and is_simple(compiled):
            warps = launcher.keywords(launcher.choices[launcher.chosen], False)["num_warps"]
            launcher.started[launcher.is_even(self.numbers)] = Started(
                function_of(compiled), warps * WARP, compiled.metadata.shared)
            self.follow()

    def with_descriptors(self, tensors: Sequence[torch.Tensor]) -> None:
        """The first call, and later ones of which a tensor has to be moved to be described."""
        launcher = self.launcher
        if not launcher.started:
            compiled = launcher.warm_up()
            facts = compiled.metadata
            wide, high, deep = self.grids[0]
            if facts.global_scratch_size * wide * high * deep > launcher.scratch:
                raise RuntimeError(f"a kernel wants {facts.global_scratch_size} bytes of scratch")
            launcher.started[False] = Started(
                function_of(compiled), facts.num_warps * WARP, facts.shared)
            launcher.chosen = 0
        self.follow()
        torch.zeros((), device=launcher.device)  # this thread has a context from here on
        assert self.call is not None
        self.call(current_stream(launcher.device.index or 0), *map(_aligned, tensors))

    def follow(self) -> None:
        """Start the kernel without Triton from now on, if it is there."""
        launcher = self.launcher
        started, chosen = launcher.started.get(launcher.is_even(self.numbers)), launcher.chosen
        if started is not None and chosen is not None and self.call is not None:
            grid = self.grids[chosen]
            self.call.ready(
                driver_launch(), started.function, grid, started.threads, started.shared
            )

    def through_triton(self, tensors: Sequence[torch.Tensor], number: int) -> Any:
        """The slow way: Triton looks at every argument, and compiles what it has not compiled."""
        launcher, grid = self.launcher, self.grids[number]
        options = launcher.keywords(launcher.choices[number], launcher.is_even(self.numbers))
        tensors = tensors[: len(launcher.dtypes)]
        packed = struct.pack(f"={launcher.kinds}", *self.numbers)
        try:
            return run(launcher.function, grid, tensors, self.numbers, packed, options)
        except Exception as error:
            error.__dict__.setdefault(AT, f"the kernel {name_of(launcher.function)}")
            raise

    def measured(self, tensors: Sequence[torch.Tensor]) -> int:
        """The number of the fastest choice on these tensors, of those that run at all."""
        best, least = 0, float("inf")
        for number in range(len(self.grids)):
            try:
                self.through_triton(tensors, number)
            except Exception as error:  # too large for the device, or for Triton
                last = number == len(self.grids) - 1 and least == float("inf")
                if last or is_of_signal(error):
                    raise
                continue
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(MEASURED_RUNS):
                self.through_triton(tensors, number)
            end.record()
            end.synchronize()
            took = begin.elapsed_time(end)
            if took < least:
                best, least = number, took
        return best


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.data_ptr() & ALIGNED:
        return tensor
    moved = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return moved.copy_(tensor)


@dataclass(slots=True)
class Preparation:
    """Makes the launchers of one module. measure: try all configs at the first call."""

    device: torch.device
    measure: bool = False
    launchers: list[Launcher] = field(default_factory=list)

    def prepare(
        self, function: Any, choices: tuple[Choice, ...], dtypes: tuple[torch.dtype, ...],
        unsure: tuple[int, ...], asserts: bool, repeatable: bool, kinds: str = "",
        even: tuple[int, ...] = (), likely_even: bool = False, ahead: bool = True,
        options: Mapping[str, Any] | None = None, scratch: int = 0,
    ) -> Launcher:
        """See `codegen.python_wrapper`."""
        measure = self.measure and repeatable and len(choices) > 1 and self.device.type == "cuda"
        made = Launcher(
            function, choices, dtypes, unsure, asserts, measure, self.device, kinds,
            even, likely_even, ahead, options, scratch,
        )
        self.launchers.append(made)
        return made

    def likely(self) -> list[Launcher]:
        """Those whose kernels are compiled ahead."""
        if self.device.type != "cuda" or self.measure:
            return []
        return [launcher for launcher in self.launchers if launcher.ahead]

    def compile_all(self, workers: int) -> dict[str, Exception]:
        """See `compile_launchers`; the result: the errors by the names of the functions."""
        failed = compile_launchers(self.likely(), self.device, workers)
        return {name_of(launcher.function): error for launcher, error in failed}


def compile_launchers(
    launchers: list[Launcher], device: torch.device, workers: int
) -> list[tuple[Launcher, Exception]]:
    """Compile ahead what first calls will run, several at a time, in other processes where that is
    worth it, else in threads. The result: launchers with which Triton has failed, and its errors.
    """
    failed: list[tuple[Launcher, Exception]] = []

    def compile_here(left: list[Launcher]) -> None:
        outcomes = zip(left, in_threads(_error_of, left, workers), strict=True)
        failed.extend((launcher, error) for launcher, error in outcomes if error is not None)

    outer = contextvars.copy_context()

    def meanwhile() -> None:
        compile_here([one for one in launchers if one.scratch])  # other processes make none of them
        outer.run(work_now)

    with while_waiting(meanwhile):
        compile_here(by_processes([one for one in launchers if not one.scratch], device))
    return failed


@dataclass(slots=True)
class CachedPreparation:
    """The same for a module whose kernels are there: see `gpu_module.py`. binaries: of its
    launchers, in their order; module: gives the whole one, for Triton."""

    device: torch.device
    binaries: Iterator[Binary | None]
    module: Callable[[], ModuleType]

    def prepare(self, name: str, *facts: Any, **more: Any) -> Launcher:
        """Errors: NotLoaded."""
        launcher = Preparation(self.device).prepare(Later(name, self.module), *facts, **more)
        binary = next(self.binaries)
        if binary is not None:
            even = launcher.likely_even and bool(launcher.even)
            launcher.started[even] = start_of(binary, self.device)
            launcher.chosen = 0
        return launcher


def by_processes(launchers: list[Launcher], device: torch.device) -> list[Launcher]:
    """The launchers whose functions other processes have not compiled: none of those with which
    Triton fails: here the error is Triton's own. Launchers without scratch memory are given."""
    if len(launchers) < compile_jobs.FEWEST or not compile_jobs.are_worth_it():
        return launchers
    target = compile_jobs.target_of(device)
    made: set[int] = set()
    log = logs.log("perf_hints")
    try:
        jobs = [launcher.job(target) for launcher in launchers]
        for number, result in compile_jobs.compiled(jobs, lambda at: _error_of(launchers[at])):
            if isinstance(result, Compiled) and result.cubin:
                result = _not_taken(launchers[number], result)
            if result is None:
                made.add(id(launchers[number]))
            else:
                log.emit(f"{jobs[number].name} is compiled in a thread: {result}")
    except OSError as error:
        log.emit(f"kernels are compiled in threads: {error}")
    metrics.count("not_by_processes", len(launchers) - len(made))
    return [launcher for launcher in launchers if id(launcher) not in made]


def _not_taken(launcher: Launcher, made: Compiled) -> NotLoaded | None:
    """Why the driver does not load it, if it does not: more than the device has, say."""
    try:
        launcher.take(Binary(made.name, made.cubin, made.threads, made.shared))
    except NotLoaded as error:
        return error
    return None


def _error_of(launcher: Launcher) -> Exception | None:
    try:
        launcher.warm_up()
    except Exception as error:
        return error
    return None


def name_of(function: Any) -> str:
    """The name of a Triton function, whatever has wrapped it."""
    inner = getattr(function, "fn", function)
    return str(getattr(inner, "__name__", inner))
