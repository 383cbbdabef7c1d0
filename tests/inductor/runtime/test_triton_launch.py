"""Launchers of Triton functions without Triton: what goes the short way and what the long way."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from inductor.runtime._launch import Allocation

from inductor.runtime import triton_launch
from inductor.runtime.triton_launch import OperatorCall, Preparation, view


class Compiled:
    function = 1234

    def __init__(self, **special: int) -> None:
        self.metadata = SimpleNamespace(shared=96, num_ctas=1, **special)


class Function:
    """In the place of a Triton function."""

    def __init__(self, compiled: Compiled) -> None:
        self.calls: list[tuple] = []
        self.compiled = compiled

    def __getitem__(self, grid):
        def launch(*tensors, **keywords):
            self.calls.append((grid, tensors, keywords))
            return self.compiled

        return launch


@pytest.fixture
def driver(monkeypatch) -> Iterator[Driver]:
    made = Driver()
    address = ctypes.cast(made.function, ctypes.c_void_p).value
    monkeypatch.setattr(triton_launch, "driver_launch", lambda: address)
    yield made


class Driver:
    """In the place of CUDA: `starts` has what each kernel was started with."""

    def __init__(self) -> None:
        self.starts: list[tuple] = []
        self.code = 0
        number, place = ctypes.c_uint, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, place, *[number] * 7, place, ctypes.POINTER(ctypes.POINTER(place)), place
        )
        self.function = kind(self.start)

    def start(self, function, *rest) -> int:
        *shape, stream, parameters, extra = rest
        values = tuple(parameters[n][0] for n in range(4))
        self.starts.append((function, tuple(shape), stream, values, extra))
        return self.code


CHOICES = ((64, 8, 4), (32, 8, 4))
GRIDS = ((4, 2, 1), (8, 1, 1))
DTYPES = (torch.float32, torch.float32)
STREAM = 77


def prepared(function: Function):
    made = Preparation(torch.device("cuda", 0))
    return made.prepare(function, CHOICES, DTYPES, (0,), False, True).at(GRIDS)


def test_second_call_goes_the_short_way(driver) -> None:
    function = Function(Compiled())
    launcher = prepared(function)
    tensors = torch.randn(64), torch.randn(64)
    for _ in range(3):
        launcher(STREAM, *tensors)
    (grid, given, keywords), = function.calls
    assert grid == (4, 2, 1) and given == tensors
    assert keywords["XBLOCK"] == 64 and keywords["RBLOCK"] == 8 and keywords["num_warps"] == 4
    addresses = (tensors[0].data_ptr(), tensors[1].data_ptr(), None, None)
    expected = (1234, (4, 2, 1, 128, 1, 1, 96), STREAM, addresses, None)
    assert driver.starts == [expected] * 2


def test_odd_addresses_go_the_long_way(driver) -> None:
    """A kernel that was compiled for aligned addresses never sees others, nor the other way round."""
    function = Function(Compiled())
    launcher = prepared(function)
    even, odd = torch.randn(64), torch.randn(65)[1:]
    launcher(STREAM, odd, even)
    launcher(STREAM, odd, even)
    assert len(function.calls) == 2 and not driver.starts
    launcher(STREAM, even, even)
    launcher(STREAM, even, odd)
    assert len(function.calls) == 3 and len(driver.starts) == 1
    launcher(STREAM, odd, even)
    assert len(function.calls) == 4 and len(driver.starts) == 1


def test_kernels_that_need_more_go_through_triton(driver) -> None:
    function = Function(Compiled(global_scratch_size=64))
    launcher = prepared(function)
    for _ in range(2):
        launcher(STREAM, torch.randn(4), torch.randn(4))
    assert len(function.calls) == 2 and not driver.starts


@pytest.mark.parametrize("code", [3, 201])
def test_a_thread_without_a_context_goes_through_triton(driver, code) -> None:
    function = Function(Compiled())
    launcher = prepared(function)
    tensors = torch.randn(4), torch.randn(4)
    launcher(STREAM, *tensors)
    driver.code = code
    launcher(STREAM, *tensors)
    assert len(function.calls) == 2 and len(driver.starts) == 1


def test_errors_of_the_driver_are_raised(driver) -> None:
    launcher = prepared(Function(Compiled()))
    tensors = torch.randn(4), torch.randn(4)
    launcher(STREAM, *tensors)
    driver.code = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        launcher(STREAM, *tensors)
    with pytest.raises(TypeError, match="a stream and 2 tensors"):
        launcher(STREAM, tensors[0])
    with pytest.raises(TypeError, match="no tensor"):
        launcher(STREAM, tensors[0], 3)


def test_allocations() -> None:
    new = Allocation((2, 3), (1, 2), torch.float16, torch.device("cpu"))
    tensor = new()
    assert tensor.shape == (2, 3) and tensor.stride() == (1, 2) and tensor.dtype is torch.float16
    assert new().data_ptr() != tensor.data_ptr()
    with pytest.raises(TypeError):
        Allocation((2,), (1,), "float32", torch.device("cpu"))


def test_view_counts_from_the_tensor() -> None:
    tensor = torch.arange(24.0)[4:]
    assert torch.equal(view(tensor, (2, 3), (6, 1), 2), torch.tensor([[6.0, 7, 8], [12, 13, 14]]))
    assert view(tensor, (20,), (1,), 0, torch.int32).dtype is torch.int32


def whole(position: int) -> tuple:
    return ("whole", position)


def layout(*size: int, dtype: torch.dtype = torch.float32) -> tuple:
    return size, torch.empty(size, device="meta").stride(), dtype


def test_operator_calls_take_views_and_constants() -> None:
    """As `torch.addmm` of a bias, a matrix that lies in a vector, and a turned weight."""
    operands = (whole(0), ("view", 1, (2, 3), (3, 1), 4, torch.float32), ("view", 2, (3, 5), (1, 3), 0, torch.float32),
                ("constant", 2), ("constant", 0.5))
    call = OperatorCall("aten::addmm", "", operands, (layout(2, 5),), True)
    bias, flat, weight = torch.randn(5), torch.randn(20), torch.randn(5, 3)
    expected = torch.addmm(bias, flat[4:10].view(2, 3), weight.t(), beta=2, alpha=0.5)
    torch.testing.assert_close(call(bias, flat, weight), expected, rtol=0, atol=0)
    begun = torch.randn(30)[10:]  # a view counts from the tensor's first element
    torch.testing.assert_close(
        call(bias, begun, weight), torch.addmm(bias, begun[4:10].view(2, 3), weight.t(), beta=2, alpha=0.5))
    with pytest.raises(TypeError, match="takes 3 tensors"):
        call(bias, flat)
    with pytest.raises(TypeError, match="no tensor"):
        call(bias, flat, 3)


def test_operator_calls_keep_what_lies_as_expected() -> None:
    """A result of other strides is moved, one of another size or dtype is an error."""
    transposed = OperatorCall("aten::t", "", (whole(0),), (((4, 3), (1, 4), torch.float32),), True)
    tensor = torch.randn(3, 4)
    assert transposed(tensor).data_ptr() == tensor.data_ptr()
    moved = OperatorCall("aten::t", "", (whole(0),), (layout(4, 3),), True)(tensor)
    assert moved.stride() == (3, 1) and torch.equal(moved, tensor.t())
    with pytest.raises(RuntimeError, match="where compilation saw"):
        OperatorCall("aten::t", "", (whole(0),), (layout(3, 4),), True)(tensor)
    with pytest.raises(RuntimeError, match="another dtype"):
        OperatorCall("aten::t", "", (whole(0),), (layout(4, 3, dtype=torch.int32),), True)(tensor)


def test_operator_calls_with_lists_and_several_results() -> None:
    index = OperatorCall("aten::index", "Tensor", (whole(0), ("views", (None, whole(1)))), (layout(3, 2),), True)
    tensor, columns = torch.randn(3, 4), torch.tensor([2, 0])
    assert torch.equal(index(tensor, columns), tensor[:, columns])
    parts = OperatorCall("aten::split_with_sizes", "", (whole(0), ("constant", [1, 3]), ("constant", 1)),
                         (None, ((3, 3), (4, 1), torch.float32)), False)
    nothing, rest = parts(tensor)
    assert nothing is None and torch.equal(rest, tensor[:, 1:])
    found = OperatorCall("aten::max", "dim", (whole(0), ("constant", 1), ("constant", False)),
                         (layout(3), layout(3, dtype=torch.int64)), False)(tensor)
    assert [torch.equal(a, b) for a, b in zip(found, tensor.max(1), strict=True)] == [True, True]


def test_operator_calls_are_below_autograd_and_autocast() -> None:
    multiply = OperatorCall("aten::mm", "", (whole(0), whole(1)), (layout(3, 3),), True)
    a, b = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = multiply(a, b)
    assert not found.requires_grad and torch.equal(found, a.detach() @ b)


def test_measuring_wants_repeatable_kernels() -> None:
    preparation = Preparation(torch.device("cuda", 0), measure=True)
    assert preparation.prepare(Function(Compiled()), CHOICES, DTYPES, (), False, True).measure
    assert not preparation.prepare(Function(Compiled()), CHOICES, DTYPES, (), False, False).measure
    assert triton_launch.MEASURED_RUNS > 1


def test_numbers_go_behind_the_tensors(driver) -> None:
    """A kernel that ran at some numbers is not looked at by Triton for others."""
    function = Function(Compiled())
    made = Preparation(torch.device("cuda", 0))
    launcher = made.prepare(function, CHOICES, DTYPES, (0,), False, True, kinds="qd")
    tensors = torch.randn(4), torch.randn(4)
    launcher.at(GRIDS, (-5, 0.5))(STREAM, *tensors)
    (grid, given, _), = function.calls
    assert grid == (4, 2, 1) and given == (*tensors, -5, 0.5)
    launcher.at(((7, 1, 1), (1, 1, 1)), (1 << 40, 0.25))(STREAM, *tensors)
    assert len(function.calls) == 1
    ((_, shape, _, values, _),) = driver.starts
    assert shape[:3] == (7, 1, 1) and values[:2] == tuple(t.data_ptr() for t in tensors)
    assert values[2:] == (1 << 40, struct.unpack("=q", struct.pack("=d", 0.25))[0])
