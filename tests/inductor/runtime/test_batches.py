"""Kernels that are started together, and as graphs where their addresses come again. A driver in Python."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from inductor.runtime._launch import Allocation, KernelCall, OperatorCall, Program

from inductor.runtime.graph_functions import NAMES
from inductor.runtime.triton_launch import view

SIZE = 64
BYTES = 4 * SIZE
CPU = torch.device("cpu")
HERE, OWN = 7, 99  # the streams of the caller and of graphs
POINTER = ctypes.c_void_p
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, POINTER, *[ctypes.c_uint] * 7, POINTER, ctypes.POINTER(POINTER), POINTER)
KEPT: list[Any] = []  # drivers: programs call them while they are deleted
new = Allocation((SIZE,), (1,), torch.float32, CPU)
sine = OperatorCall("aten::sin", "", (("whole", 0),), (((SIZE,), (1,), torch.float32),), True)


def at(address: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_float * SIZE).from_address(address), dtype=torch.float32)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(x, y, out=out)


def double(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(x, 2, out=out)


class Driver:
    """Starts functions on memory of the host. codes: what its functions answer, by name."""

    def __init__(self) -> None:
        self.functions: dict[int, tuple[Callable[..., None], int]] = {}
        self.recorded: list[Any] | None = None
        self.graphs: dict[int, list[Any]] = {}
        self.numbers = itertools.count(1000)
        self.log: list[str] = []
        self.codes: dict[str, int] = {}
        self.mode = 0
        self.capturing = 0
        self.launch = LAUNCH(self.start)
        kinds: dict[str, tuple[Any, ...]] = {
            "cuStreamCreate": (ctypes.POINTER(POINTER), ctypes.c_uint),
            "cuStreamIsCapturing": (POINTER, ctypes.POINTER(ctypes.c_int)),
            "cuThreadExchangeStreamCaptureMode": (ctypes.POINTER(ctypes.c_int),),
            "cuStreamBeginCapture_v2": (POINTER, ctypes.c_int),
            "cuStreamEndCapture": (POINTER, ctypes.POINTER(POINTER)),
            "cuGraphInstantiateWithFlags": (ctypes.POINTER(POINTER), POINTER, ctypes.c_ulonglong),
            "cuGraphLaunch": (POINTER, POINTER),
            "cuGraphDestroy": (POINTER,), "cuGraphExecDestroy": (POINTER,),
        }  # fmt: skip
        self.callbacks = [ctypes.CFUNCTYPE(ctypes.c_int, *kinds[name])(self.answer(name)) for name in NAMES]
        KEPT.append(self)
        self.addresses = tuple(ctypes.cast(one, POINTER).value for one in self.callbacks)

    def answer(self, name: str) -> Callable[..., int]:
        def called(*args: Any) -> int:
            if name != "cuStreamIsCapturing":
                self.log.append(name)
            if name in self.codes:
                return self.codes[name]
            getattr(self, name)(*args)
            return 0

        return called

    def kernel(self, function: Callable[..., None], count: int, ready: bool = True) -> KernelCall:
        """ready: from the start on; else from its first call on."""
        number = len(self.functions) + 1
        self.functions[number] = function, count

        def slow(*tensors: torch.Tensor) -> None:
            self.log.append("slow")
            function(*tensors)
            self.get_ready(call, number)

        call = KernelCall(slow, count, ())
        if ready:
            self.get_ready(call, number)
        return call

    def get_ready(self, call: KernelCall, number: int) -> None:
        call.ready(ctypes.cast(self.launch, POINTER).value, number, (1, 1, 1), 32, 0)

    def start(self, function: int, *facts: Any) -> int:
        stream, parameters = facts[7], facts[8]
        run, count = self.functions[function]
        addresses = [ctypes.cast(parameters[n], ctypes.POINTER(ctypes.c_uint64))[0] for n in range(count)]
        if stream == OWN:
            assert self.recorded is not None and self.mode == 2
            self.recorded.append((run, addresses))
        else:
            assert stream == HERE
            self.log.append("launch")
            run(*map(at, addresses))
        return self.codes.get("launch", 0)

    def cuStreamCreate(self, stream: Any, flags: int) -> None:
        assert flags == 1
        stream[0] = OWN

    def cuStreamIsCapturing(self, stream: int, status: Any) -> None:
        assert stream == HERE
        status[0] = self.capturing

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        mode[0], self.mode = self.mode, mode[0]

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        assert (stream, mode) == (OWN, 1)
        self.recorded = []

    def cuStreamEndCapture(self, stream: int, graph: Any) -> None:
        number = next(self.numbers)
        self.graphs[number], self.recorded = self.recorded or [], None
        graph[0] = number

    def cuGraphInstantiateWithFlags(self, made: Any, graph: int, flags: int) -> None:
        made[0] = graph

    def cuGraphLaunch(self, made: int, stream: int) -> None:
        assert stream == HERE
        for run, addresses in self.graphs[made]:
            run(*map(at, addresses))

    def cuGraphDestroy(self, graph: int) -> None:
        assert graph in self.graphs

    def cuGraphExecDestroy(self, made: int) -> None:
        del self.graphs[made]

    def program(self, of_list: Callable[[list[Any]], Any], inputs: int) -> Any:
        return Program(of_list, inputs, lambda device: HERE, 0, self.addresses)

    def seen(self) -> list[str]:
        found = [name for name in self.log if name in ("slow", "launch", "cuGraphLaunch")]
        self.log.clear()
        return found


def chain(driver: Driver, ready: bool = True) -> Callable[[list[Any]], Any]:
    """Five kernels, of whose results the last two are seen outside."""
    plus, twice = driver.kernel(add, 3, ready), driver.kernel(double, 2, ready)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        x, y = args
        args.clear()
        a = new()
        plus(HERE, x, y, a)  # x + y
        b = new.over(a)
        twice(HERE, a, b)
        del a
        c = new()
        plus(HERE, b, y, c)  # 2 x + 3 y
        del y
        d = new()
        twice(HERE, b, d)  # 4 x + 4 y
        del b
        e = new()
        plus(HERE, c, d, e)  # 6 x + 7 y
        del c
        return d, e

    return of_list


def in_place(driver: Driver) -> Callable[[list[Any]], Any]:
    """Four kernels on memory of the caller's alone, whose addresses are all that a call differs in."""
    plus, twice = driver.kernel(add, 3), driver.kernel(double, 2)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        x, y, out = args
        args.clear()
        plus(HERE, x, y, out)  # x + y
        twice(HERE, out, out)
        plus(HERE, out, y, out)  # 2 x + 3 y
        twice(HERE, out, out)  # 4 x + 6 y
        return (None,)

    return of_list


ONE_BY_ONE = ["launch"] * 4


def test_values_and_the_memory_of_a_block() -> None:
    driver = Driver()
    program = driver.program(chain(driver), 2)
    for _ in range(5):
        x, y = torch.randn(SIZE), torch.randn(SIZE)
        d, e = program([x, y])
        torch.testing.assert_close((d, e), (4 * x + 4 * y, 6 * x + 7 * y))
    ((kernels, block, *_),) = program.batches
    assert (kernels, block) == (5, 2 * BYTES)  # b lies over a


def test_addresses_that_come_again_become_graphs() -> None:
    driver = Driver()
    programs = [driver.program(in_place(driver), 3)]
    sets = [[torch.randn(SIZE) for _ in range(3)] for _ in range(6)]

    def called(number: int) -> list[str]:
        x, y, out = sets[number]
        x.normal_()
        programs[0]([x, y, out])
        torch.testing.assert_close(out, 4 * x + 6 * y)
        return driver.seen()

    assert [called(n) for n in (0, 1) * 3] == [ONE_BY_ONE] * 6  # two that take turns
    assert [called(n) for n in (0, 1, 1, 0)] == [["cuGraphLaunch"]] * 4
    assert programs[0].batches == [(4, 0, 2, 4, 0)]
    assert [called(n) for n in (2, 3, 4, 5)] == [ONE_BY_ONE] * 4  # none of the first two is known now
    assert not driver.graphs and called(0) == ONE_BY_ONE
    assert [called(5), called(5)] == [ONE_BY_ONE] * 2 and called(5) == ["cuGraphLaunch"]
    assert driver.mode == 0 and len(driver.graphs) == 1
    programs.clear()
    assert not driver.graphs


def test_addresses_that_seldom_come_again_get_no_more_graphs() -> None:
    driver = Driver()
    program = driver.program(in_place(driver), 3)
    sets = [[torch.randn(SIZE) for _ in range(3)] for _ in range(12)]

    def four(number: int) -> list[str]:
        x, y, out = sets[number]
        for _ in range(4):
            program([x, y, out])
            torch.testing.assert_close(out, 4 * x + 6 * y)
        return driver.seen()

    graph = [*ONE_BY_ONE * 3, "cuGraphLaunch"]
    assert [four(number) for number in range(12)] == [graph] * 4 + [ONE_BY_ONE * 4] * 8
    assert program.batches == [(4, 0, 4, 4, 0)]


def test_kernels_that_are_not_ready_get_tensors() -> None:
    driver = Driver()
    program = driver.program(chain(driver, ready=False), 2)
    x, y = torch.randn(SIZE), torch.randn(SIZE)
    d, e = program([x, y])
    assert driver.seen() == ["slow", "slow", "launch", "launch", "launch"]
    torch.testing.assert_close((d, e), (4 * x + 4 * y, 6 * x + 7 * y))


def test_a_graph_goes_when_a_kernel_changes() -> None:
    driver = Driver()
    plus, twice = driver.kernel(add, 3), driver.kernel(double, 2)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        x, out = args
        args.clear()
        for _ in range(2):
            twice(HERE, x, out)
            plus(HERE, out, x, out)
        return (None,)

    program = driver.program(of_list, 2)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    for _ in range(4):
        program([x, out])
    assert driver.seen() == [*ONE_BY_ONE * 3, "cuGraphLaunch"]
    driver.functions[3] = (lambda x, out: torch.mul(x, 5, out=out)), 2
    driver.get_ready(twice, 3)
    for _ in range(4):
        program([x, out])
        torch.testing.assert_close(out, 6 * x)
    assert driver.seen() == [*ONE_BY_ONE * 3, "cuGraphLaunch"]


@pytest.mark.parametrize("failing", [
    "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])  # fmt: skip
def test_where_the_driver_makes_no_graph_kernels_are_started_one_by_one(failing: str) -> None:
    driver = Driver()
    driver.codes[failing] = 801
    program = driver.program(in_place(driver), 3)
    x, y, out = (torch.randn(SIZE) for _ in range(3))
    for _ in range(5):
        program([x, y, out])
        torch.testing.assert_close(out, 4 * x + 6 * y)
        assert driver.seen() == ONE_BY_ONE
    assert program.batches == [(4, 0, 0, 0, 801)] and driver.mode == 0


@pytest.mark.parametrize(("code", "error"), [(801, 801), (201, 0)])
def test_where_a_graph_does_not_start_kernels_do(code: int, error: int) -> None:
    """201: this thread has no context yet, and will have one."""
    driver = Driver()
    program = driver.program(in_place(driver), 3)
    x, y, out = (torch.randn(SIZE) for _ in range(3))
    for _ in range(3):
        program([x, y, out])
    driver.codes["cuGraphLaunch"] = code
    out.zero_()
    driver.log.clear()
    program([x, y, out])
    assert driver.seen() == ["cuGraphLaunch", *ONE_BY_ONE]
    torch.testing.assert_close(out, 4 * x + 6 * y)
    del driver.codes["cuGraphLaunch"]
    program([x, y, out])
    assert driver.seen() == (ONE_BY_ONE if error else ["cuGraphLaunch"])
    assert program.batches == [(4, 0, 1, int(not error), error)]


def test_no_graphs_while_the_stream_is_recorded() -> None:
    driver = Driver()
    driver.capturing = 1
    program = driver.program(in_place(driver), 3)
    x, y, out = (torch.randn(SIZE) for _ in range(3))
    for _ in range(6):
        program([x, y, out])
    assert driver.seen() == ONE_BY_ONE * 6 and program.batches == [(4, 0, 0, 0, 0)]


def test_views_operators_and_what_dies() -> None:
    """Views of what is made within and outside; an operator ends a batch; inputs die behind their batch."""
    driver = Driver()
    plus, twice = driver.kernel(add, 3), driver.kernel(double, 2)
    wide = Allocation((4 * SIZE,), (1,), torch.float32, CPU)
    is_dead: list[bool] = []
    look = driver.kernel(lambda *given: is_dead.append(held() is None), 1)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        x, table = args
        args.clear()
        a = wide()
        for n in range(4):
            twice(HERE, view(table, (SIZE,), (1,), n * SIZE), view(a, (SIZE,), (1,), n * SIZE))
        b = new()
        plus(HERE, view(a, (SIZE,), (1,), SIZE), view(a, (SIZE,), (1,), 3 * SIZE), b)
        look(HERE, x)
        c = new()
        plus(HERE, b, x, c)
        del a, b, x
        d = sine(c)
        look(HERE, c)
        del c
        return (d,)

    program = driver.program(of_list, 2)
    table = torch.randn(4 * SIZE)
    for _ in range(7):
        x = torch.randn(SIZE)
        wanted = (2 * table[SIZE : 2 * SIZE] + 2 * table[3 * SIZE :] + x).sin()
        held, given = weakref.ref(x), [x, table]
        del x
        (found,) = program(given)
        torch.testing.assert_close(found, wanted)
    assert is_dead[:2] == [False, True]
    (batch,) = program.batches
    assert batch[:2] == (7, 5 * BYTES)


def test_memory_of_a_block_is_used_again() -> None:
    driver = Driver()
    twice = driver.kernel(double, 2)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        (x,) = args
        args.clear()
        for _ in range(20):
            y = new()
            twice(HERE, x, y)
            x = y
        return (x,)

    program = driver.program(of_list, 1)
    x = torch.randn(SIZE)
    for _ in range(3):
        torch.testing.assert_close(program([x])[0], x * 2.0**20)
    ((kernels, block, *_),) = program.batches
    assert (kernels, block) == (20, 2 * BYTES)


def test_errors_of_a_kernel_come_through() -> None:
    driver = Driver()
    driver.codes["launch"] = 700
    program = driver.program(chain(driver), 2)
    with pytest.raises(RuntimeError, match="did not start: CUDA error 700"):
        program([torch.randn(SIZE), torch.randn(SIZE)])
