"""Launches that C++ knows are those that Triton would do: same kernel, grid, stream and bits of every argument.

Triton compiles for a GPU that is not there; a driver of the test takes what it launches, and a function of C what C++
hands to CUDA's."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET", "0") == "1":
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402

from dynamo.graph_operators import later_launches  # noqa: E402
from dynamo.graph_operators.kernel_calls import KernelCall, operators  # noqa: E402

SCALE: tl.constexpr = tl.constexpr(3)
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
FORMATS = {"i1": "?", "u1": "?", "i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}


def bits_of(kernel_type: str, value: Any) -> bytes:
    """As Triton's launcher packs it."""
    if kernel_type.startswith("*"):
        return struct.pack("Q", value.data_ptr())
    return struct.pack(FORMATS[kernel_type], value)


class Machine:
    """In the place of Triton's driver and of CUDA's. seen: launches (function, grid, threads, shared, stream, arguments);
    by_triton: how many of them Triton has done."""

    def __init__(self) -> None:
        self.device, self.streams = 0, {0: 0, 1: 701}
        self.seen: list[Any] = []
        self.by_triton, self.refuses = 0, 0
        self.types: dict[int, list[str]] = {}
        self.numbers = itertools.count(1000)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
            load_binary=lambda *_: (object(), next(self.numbers), 0, 0, 1024))
        self.start = LAUNCH(self.launch)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return self.streams[device]

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> Any:
        def bench(call: Callable[[], object], quantiles: Any) -> tuple[float, ...]:
            call()
            return (1.0 / next(self.numbers),) * len(quantiles)  # the last one is the best

        return bench

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: int, packed: Any, facts: Any, before: Any, behind: Any,
                   *values: Any) -> None:
            before(facts)
            types = [src.signature[name] for name in src.fn.arg_names]
            given = [(t, v) for t, v in zip(types, values, strict=True) if t != "constexpr"]
            self.types[function] = [t for t, _ in given]
            if x * y * z > 0:
                self.by_triton += 1
                self.seen.append((function, (x, y, z), packed[0] * 32, packed[2], stream, [bits_of(*one) for one in given]))
            behind(facts)

        return launch

    def launch(self, function: int, x: int, y: int, z: int, threads: int, high: int, deep: int, shared: int,
               stream: int, parameters: Any, extra: Any) -> int:
        if self.refuses:
            return 201
        assert (high, deep, extra) == (1, 1, None)
        types = self.types[function]
        sizes = [8 if t.startswith("*") else struct.calcsize(FORMATS[t]) for t in types]
        given = [ctypes.string_at(parameters[n], size) for n, size in enumerate(sizes)]
        for n in range(2):  # pointers to scratch memory
            assert ctypes.string_at(parameters[len(types) + n], 8) == bytes(8)
        self.seen.append((function, (x, y, z), threads, shared, stream or 0, given))
        return 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Machine]:
    made = Machine()
    place = later_launches.Place(
        lambda: made.device, made.get_current_stream, lambda: ctypes.cast(made.start, ctypes.c_void_p).value, False)
    monkeypatch.setattr(later_launches, "_cuda", lambda: place)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    before = driver._active
    driver.set_active(made)
    yield made
    driver._active = before


class Site:
    """A call of a kernel in a program: given by an operator, and by Triton for comparison."""

    def __init__(self, machine: Machine, kernel: Any, names: str, kinds: str, **constants: Any) -> None:
        self.machine, self.kernel, self.constants = machine, kernel, constants
        self.names = tuple(names.split())
        kinds_of = {"t": "tensor", "i": "int", "f": "float", "b": "bool"}
        configs = getattr(kernel, "configs", [])
        grids = tuple(tuple(config.kwargs.items()) for config in configs) or ((),)
        self.grids = list(grids)
        call = KernelCall(self.names, tuple(kinds_of[k] for k in kinds), tuple(constants.items()), grids)
        self.operator = operators.of(kernel, call)

    def run(self, *given: Any, grid: tuple[int, ...] = (2, 1, 1)) -> bool:
        """Whether Python had no part in the launch, which is Triton's."""
        machine = self.machine
        sizes = [size + n for n in range(len(self.grids)) for size in grid]
        before, count = machine.by_triton, len(machine.seen)
        self.operator(*given, sizes)
        mine = machine.seen[count:][-1:]
        is_later = machine.by_triton == before

        def chosen(meta: Any) -> tuple[int, ...]:
            n = next(n for n, c in enumerate(self.grids) if all(meta[name] == value for name, value in c))
            return tuple(size + n for size in grid)

        count = len(machine.seen)
        self.kernel[chosen if self.grids != [()] else grid](**dict(zip(self.names, given, strict=True)), **self.constants)
        assert mine == machine.seen[count:][-1:]
        return is_later


@triton.jit
def scaled(x_ptr, out_ptr, n, s, flag, optional, BLOCK: tl.constexpr, more=5):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if flag:
        x += more * SCALE
    if optional is not None:
        x += 1
    tl.store(out_ptr + offsets, x * s, mask=offsets < n)


def site(machine: Machine, kernel: Any = None) -> Site:
    kernel = fresh(scaled) if kernel is None else kernel
    return Site(machine, kernel, "x_ptr out_ptr n s flag", "ttifb", optional=None, BLOCK=16, num_warps=2)


def tensors(first: int = 0, second: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """first, second: elements that they lie behind a multiple of 64 bytes."""
    return torch.empty(64, dtype=dtype)[first:], torch.empty(64, dtype=dtype)[second:]


def fresh(kernel: Any) -> Any:
    """The same function, of which nothing is known yet."""
    return triton.jit(kernel.fn)


def test_equal_calls(machine: Machine) -> None:
    one = site(machine)
    x, y = tensors()
    assert not one.run(x, y, 33, 2.5, True)
    assert one.run(x, y, 33, 2.5, True)
    assert one.run(*tensors(), 35, -0.0, False, grid=(7, 3, 2)), "what only a number's value tells"
    assert one.run(x, x, 33, float("nan"), True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.int64])
def test_alignment_and_dtypes(machine: Machine, dtype: torch.dtype) -> None:
    one = site(machine)
    one.run(*tensors(), 33, 2.5, True)
    width = 16 // dtype.itemsize
    for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, y = tensors(first, second, dtype)
        assert not one.run(x, y, 33, 1.0, True)
        assert one.run(x[width:], y[width:], 33, 1.0, True)
    assert one.run(*tensors(), 33, 2.5, True)


def test_numbers(machine: Machine) -> None:
    """1 is a constant of a kernel, multiples of 16 and of 32 bits have one of their own."""
    one, given = site(machine), tensors()
    kinds = ((1,), (16, 32, 0, -16, 1 << 20), (17, 2, -1, 31), (1 << 40, 1 << 32, -(1 << 33)), ((1 << 40) + 1, 1 << 31 | 1))
    for numbers in kinds:
        assert not one.run(*given, numbers[0], 1.0, False)
        for number in numbers:
            assert one.run(*given, number, 1.0, False)


@pytest.mark.parametrize("fixed", [
    {"s": 2.5}, {"s": float("-inf"), "flag": True}, {"flag": False}, {"s": -0.0, "more": 1 << 40}, {"n": 33, "more": 48}, {"n": 1},
], ids=str)
def test_arguments_that_are_the_same_in_all_calls(machine: Machine, fixed: dict[str, Any]) -> None:
    kinds = {"x_ptr": "t", "out_ptr": "t", "n": "i", "s": "f", "flag": "b"}
    open_ones = {name: kind for name, kind in kinds.items() if name not in fixed}
    one = Site(machine, fresh(scaled), " ".join(open_ones), "".join(open_ones.values()), optional=None, BLOCK=16, **fixed)
    values = dict(zip(kinds, (*tensors(), 33, 1.5, True), strict=True))
    given = [values[name] for name in open_ones]
    assert not one.run(*given)
    assert one.run(*given)


def test_streams_and_devices(machine: Machine) -> None:
    one, given = site(machine), (*tensors(), 33, 1.0, True)
    one.run(*given)
    machine.streams[0] = 990
    assert one.run(*given)
    machine.device = 1
    assert not one.run(*given), "each device loads it"
    assert one.run(*given) and machine.seen[-1][4] == 701
    machine.device = 0
    assert one.run(*given)


def test_grids(machine: Machine) -> None:
    one, given = site(machine), (*tensors(), 33, 1.0, True)
    one.run(*given)
    assert one.run(*given, grid=(1 << 20, 1, 1))
    count = len(machine.seen)
    one.run(*given, grid=(0, 1, 1))
    assert len(machine.seen) == count, "nothing to do"


def test_a_thread_without_a_context(machine: Machine) -> None:
    one, given = site(machine), (*tensors(), 33, 1.0, True)
    one.run(*given)
    machine.refuses = 1
    assert not one.run(*given)
    machine.refuses = 0
    assert one.run(*given)


@pytest.mark.parametrize("what", ["launch_enter_hook", "launch_exit_hook"])
def test_profilers(machine: Machine, what: str) -> None:
    one, given, seen = site(machine), (*tensors(), 33, 1.0, True), list[str]()
    one.run(*given)
    assert one.run(*given)
    hook = getattr(triton.knobs.runtime, what)

    def note(facts: Any) -> None:
        seen.append(facts.get()["name"])

    hook.add(note)
    try:
        assert not one.run(*given)
        assert seen == ["scaled"] * 2, "ours, and the one to compare with"
    finally:
        hook.remove(note)
    assert one.run(*given)
    with triton.knobs.runtime.scope():
        setattr(triton.knobs.runtime, what, note)
        assert not one.run(*given) and len(seen) == 4
    assert one.run(*given)


def test_settings_and_hooks_of_kernels(machine: Machine) -> None:
    kernel = fresh(scaled)
    one, given, seen = site(machine, kernel), (*tensors(), 33, 1.0, True), list[int]()
    one.run(*given)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.debug = True
        assert not one.run(*given) and not one.run(*given)
    assert one.run(*given)
    kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(1))
    assert not one.run(*given) and len(seen) == 2
    kernel.pre_run_hooks.clear()
    assert one.run(*given)
    kernel.run = lambda *args, **kwargs: seen.append(2)
    one.operator(*given, [1, 1, 1])
    assert seen == [1, 1, 2]


def test_global_names(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, given = site(machine), (*tensors(), 33, 1.0, True)
    one.run(*given)
    assert one.run(*given)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(4))
    with pytest.raises(RuntimeError, match="Global variable SCALE has changed"):
        one.operator(*given, [1, 1, 1])


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=8)]


def tuned(**options: Any) -> Any:
    configs = options.pop("configs", CONFIGS)
    return triton.autotune(configs=configs, key=["n"], **options)(fresh(scaled))


def tuned_site(machine: Machine, kernel: Any) -> Site:
    return Site(machine, kernel, "x_ptr out_ptr n s flag", "ttifb", optional=None)


def test_tuned_kernels(machine: Machine) -> None:
    """Their grids hang of the configuration, which is chosen for each n."""
    kernel = tuned()
    one, given = tuned_site(machine, kernel), tensors()
    chosen = set()
    for n in (33, 35, 48):
        kernel.configs.reverse()  # the last one wins
        assert not one.run(*given, n, 1.0, True)
        assert one.run(*given, n, 1.0, True)
        chosen.add(machine.seen[-1][1:3])
    assert len(chosen) == 2


@pytest.mark.parametrize("options", [
    {"reset_to_zero": ["out_ptr"]}, {"restore_value": ["out_ptr"]}, {"pre_hook": lambda *args, **kwargs: None},
    {"configs": [triton.Config({"BLOCK": 16}, pre_hook=lambda args: None)]},
])  # fmt: skip
def test_hooks_of_configurations(machine: Machine, options: dict[str, Any]) -> None:
    kernel = tuned(**options)
    one, given = tuned_site(machine, kernel), (*tensors(), 33, 1.0, True)
    assert not one.run(*given) and not one.run(*given)


def test_a_hook_that_comes_later(machine: Machine) -> None:
    config = triton.Config({"BLOCK": 16})
    one, given = tuned_site(machine, tuned(configs=[config])), (*tensors(), 33, 1.0, True)
    assert not one.run(*given) and one.run(*given)
    config.pre_hook = lambda args: args["out_ptr"].zero_()
    assert not one.run(*given)


def guessed(**functions: Any) -> Any:
    return triton.heuristics(functions)(fresh(scaled))


def test_computed_constants(machine: Machine) -> None:
    kernel = guessed(BLOCK=lambda args: triton.next_power_of_2(args["n"] + args["x_ptr"].shape[0]))
    one, given = Site(machine, kernel, "x_ptr out_ptr n s flag", "ttifb", optional=None), tensors()
    for x in (given[0], given[0][32:]):
        for n in (33, 999, 65):
            assert not one.run(x, given[1], n, 1.0, True)
            assert one.run(x, given[1], n, 1.0, True)


@pytest.mark.parametrize("function", [
    lambda args: 16 if args["x_ptr"].data_ptr() % 64 else 32, lambda args: 16 if args["x_ptr"].sum() else 32,
    lambda args: len(CONFIGS) * 8, lambda args, known=[16]: known[0], max,  # noqa: B006
    lambda args: max(torch.cuda.get_device_capability()), lambda args: [n for n in range(args["n"])][0],
])  # fmt: skip
def test_functions_that_may_read_more(function: Any) -> None:
    assert not later_launches._is_plain(function)


@pytest.mark.parametrize("function", [
    lambda args: args["x_ptr"] is not None, lambda args: args["n"] % args["BLOCK"] == 0, lambda args: 4 if args["n"] < 9 else 8,
    lambda args: args["x_ptr"].dtype == torch.float32 and args["x_ptr"].stride(0) == 1, lambda args: min(triton.cdiv(args["n"], 2), 8),
])  # fmt: skip
def test_functions_of_what_a_key_holds(function: Any) -> None:
    assert later_launches._is_plain(function)


def test_unusual_arguments(machine: Machine) -> None:
    one, (x, y) = site(machine), tensors()
    big = (1 << 63) - 1
    assert not one.run(x, y, big, 1.0, True)
    assert one.run(x, y, big, 1.0, True)


def test_tensors_of_another_device(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton says what is wrong with those that are on no GPU."""
    place = dataclasses.replace(later_launches._cuda(), on_cuda=True)  # type: ignore[type-var]
    monkeypatch.setattr(later_launches, "_cuda", lambda: place)
    one, given = site(machine), (*tensors(), 33, 1.0, True)
    assert not one.run(*given) and not one.run(*given)


class Derived(triton.runtime.jit.JITFunction):
    """Of a library that does more in each launch."""


def test_other_classes(machine: Machine) -> None:
    one, given = site(machine, Derived(scaled.fn)), (*tensors(), 33, 1.0, True)
    assert not one.run(*given) and not one.run(*given)


def test_many_keys(machine: Machine) -> None:
    kernel = tuned(configs=[*CONFIGS])
    one, given = tuned_site(machine, kernel), tensors()
    kernel.cache.update({(n, "torch.float32", "torch.float32"): CONFIGS[0] for n in range(3000)})
    for n in range(3, 2000, 2):
        one.operator(*given, n, 1.0, True, [1, 1, 1, 1, 1, 1])
    assert one.run(*given, 1999, 1.0, True)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_drawn_calls(machine: Machine, seed: int) -> None:
    draw, later = random.Random(seed), 0
    computed = guessed(BLOCK=lambda args: 16 if args["n"] % 3 == 0 else 32)
    sites = [site(machine), tuned_site(machine, tuned()), tuned_site(machine, computed)]
    for _ in range(600):
        given = tensors(draw.choice((0, 0, 1, 4, 8)), draw.choice((0, 0, 1, 4)), draw.choice((torch.float32, torch.float16)))
        n = draw.choice((1, 16, 17, 33, 48, (1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1, 1 << 40))
        machine.device, machine.streams[0] = draw.choice((0, 0, 1)), draw.randrange(5)
        s, flag = draw.choice((0.0, 1.0, -2.5, 3e38, float("inf"))), draw.random() < 0.5
        grid = draw.randrange(1, 5), draw.randrange(1, 3), 1
        later += draw.choice(sites).run(*given, n, s, flag, grid=grid)
    assert later > 50
