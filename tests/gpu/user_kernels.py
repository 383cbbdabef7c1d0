"""Triton kernels that a program launches itself: on a GPU, else in Triton's interpreter (`TRITON_INTERPRET=1`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import dynamo
from dynamo.graph_operators.kernel_writes import written_names
from tests.gpu.support import DEVICE, check, data, left_uncompiled

MODES = [None, "reduce-overhead"] if DEVICE == "cuda" else [None]
LIBRARY = "dynamo_kernel_tests"


@triton.jit
def scale_by(x, s):
    return x * s


@triton.jit
def put(pointer, offsets, value, mask):
    tl.store(pointer + offsets, value, mask=mask)


@triton.jit
def add_scaled(x_ptr, y_ptr, out_ptr, n, s, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + scale_by(y, s), mask=mask)


@triton.jit
def double_in_place(x_ptr, n, BLOCK: tl.constexpr = 16):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pointers = x_ptr + offsets
    put(x_ptr, offsets, tl.load(pointers, mask=offsets < n) * 2, offsets < n)


@triton.jit
def count(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(total_ptr, tl.sum((x > 0).to(tl.int32), 0))


@triton.jit
def power(x_ptr, out_ptr, weight_ptr, n, KIND: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(DTYPE)
    if KIND == "square":
        x = x * x
    elif KIND == "cube":
        x = x * x * x
    if weight_ptr is not None:
        x *= tl.load(weight_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x, mask=mask)


@triton.jit
def through_descriptors(given, made, s, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    made.store([row, column], given.load([row, column]) * s + 1)


def runs_once(call: Any, quantiles: Any) -> tuple[float, ...]:
    call()
    return (1.0,) * len(quantiles)


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=2)]


@triton.autotune(configs=CONFIGS, key=["n"], do_bench=None if DEVICE == "cuda" else runs_once)
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask=mask)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(min(args["n"], 32)), "EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def guessed(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    if EVEN:
        x += 1
    tl.store(out_ptr + offsets, x, mask=mask)


def blocks(n: int, size: int = 16) -> tuple[int, ...]:
    return (triton.cdiv(n, size),)


def added(x: torch.Tensor, y: torch.Tensor, s: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    add_scaled[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, s, BLOCK=16)
    return out


def by_function(x: torch.Tensor, y: torch.Tensor) -> Any:
    return added(x.sin(), y).cos() + y


def by_tuple(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.zeros_like(x)
    add_scaled[blocks(x.numel())](x, y, out, n=x.numel(), s=0.5, BLOCK=16, num_warps=2)
    return out * 2, out


def input_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    before = x * 3
    double_in_place[blocks(x.numel())](x, x.numel())
    return before + x, y


def made_and_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    t = x.exp()
    before = t.sum()
    double_in_place[blocks(t.numel())](t, t.numel())
    between = t + y
    double_in_place[blocks(t.numel())](t, t.numel())
    return before, between, t


def view_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    t = torch.cat([x, y])
    row = t[1]
    double_in_place[blocks(row.numel())](row, row.numel())
    return t, row.sum()


def counted(x: torch.Tensor, y: torch.Tensor) -> Any:
    total = torch.zeros((), dtype=torch.int32, device=x.device)
    count[blocks(x.numel())](x, total, x.numel(), BLOCK=16)
    return total, total + 1


def constants(x: torch.Tensor, y: torch.Tensor) -> Any:
    found = []
    for kind, weight in (("square", None), ("cube", y), ("none", x)):
        out = torch.empty_like(x)
        power[blocks(x.numel())](x, out, weight, x.numel(), KIND=kind, DTYPE=tl.float32, BLOCK=16)
        found.append(out)
    return found


def autotuned(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + y


def heuristic(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    guessed[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + y


def descriptors(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Of a tensor that the program makes, of a part of one, and of one whose block leaves it."""
    t = torch.cat([x.sin(), y]).contiguous()
    made = torch.zeros_like(t)
    for given, out in ((t, made), (made[4:], t[4:])):
        by_descriptor(TensorDescriptor.from_tensor(given, [4, 16]), TensorDescriptor.from_tensor(out, [4, 16]))
    return t, made, made.sum()


def by_descriptor(given: Any, out: Any, s: float = 2.0) -> None:
    grid = triton.cdiv(out.shape[0], 4), triton.cdiv(out.shape[1], 16)
    through_descriptors[grid](given, out, s, ROWS=4, COLUMNS=16)


PROGRAMS = [
    by_function, by_tuple, input_written, made_and_written, view_written, counted, constants, autotuned, heuristic,
    descriptors,
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Any, mode: str | None) -> None:
    check(program, lambda: (data(4, 12), data(4, 12)), reference=as_single(program), calls=4, mode=mode, slack=16.0)


def as_single(program: Any) -> Any:
    """For float64: kernels of these programs hold for each dtype, `DTYPE` aside."""
    return lambda *args: program(*[x.float() if program is constants else x for x in args])


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return added(x, y, 3.0)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return added(g.contiguous(), torch.zeros_like(x)), added(torch.zeros_like(g), g.contiguous(), 3.0)


@pytest.mark.parametrize("mode", MODES)
def test_in_training(mode: str | None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        out = Scaled.apply(x.sin(), y * 2).relu()
        return out.detach(), torch.autograd.grad(out.square().sum(), (x, y))

    check(f, lambda: (data(4, 12).requires_grad_(), data(4, 12).requires_grad_()), calls=4, mode=mode, slack=16.0)


def test_backward_behind_the_graph() -> None:
    f = dynamo.compile(lambda x, y: Scaled.apply(x.sin(), y * 2).relu(), fullgraph=True)
    for _ in range(2):
        x, y = data(4, 12).requires_grad_(), data(4, 12).requires_grad_()
        f(x, y).square().sum().backward()
        found = x.grad, y.grad
        x.grad = y.grad = None
        Scaled.apply(x.sin(), y * 2).relu().square().sum().backward()
        torch.testing.assert_close(found, (x.grad, y.grad))
    assert not left_uncompiled(), left_uncompiled()


def test_numbers_and_sizes_that_change() -> None:
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    for compiled in (dynamo.compile(added, backend=backend, fullgraph=True), dynamo.compile(added, fullgraph=True)):
        for n in range(3, 12):
            x, y = data(n, 5), data(n, 5)
            torch.testing.assert_close(compiled(x, y, n / 2), x + y * (n / 2))
    assert len(graphs) <= 12


def test_descriptors_from_outside() -> None:
    """They look alike, and are written each in its turn."""
    f = dynamo.compile(by_descriptor, fullgraph=True)
    given = data(8, 32)
    made = [torch.zeros(8, 32, device=DEVICE) for _ in range(4)]
    for n, out in enumerate(made):
        f(TensorDescriptor.from_tensor(given, [4, 16]), TensorDescriptor.from_tensor(out, [4, 16]))
        for m, each in enumerate(made):
            torch.testing.assert_close(each, given * 2 + 1 if m <= n else torch.zeros_like(each))


def test_descriptors_of_many_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x, out = x + 1, torch.empty_like(x)
        by_descriptor(TensorDescriptor.from_tensor(x, [4, 16]), TensorDescriptor(out, out.shape, out.stride(), [4, 16]))
        return out * 2

    compiled = dynamo.compile(f, fullgraph=True)
    for rows in (8, 12, 5, 9, 3):
        x = data(rows, 32)
        torch.testing.assert_close(compiled(x), f(x))
    assert sum(dynamo.counters["recompiles"].values()) <= 2


def test_a_descriptor_that_triton_refuses() -> None:
    def f(x: torch.Tensor, columns: int, block: int) -> torch.Tensor:
        out = torch.zeros_like(x)
        try:
            given = TensorDescriptor(x, x.shape, x.stride(), [4, block])
        except ValueError:
            return out - 1
        by_descriptor(given, TensorDescriptor.from_tensor(out[:, :columns], [4, 16]))
        return out

    compiled = dynamo.compile(f)
    x = data(8, 32)
    torch.testing.assert_close(compiled(x, 32, 16), x * 2 + 1)
    torch.testing.assert_close(compiled(x, 32, 24), torch.full_like(x, -1))
    for columns in (32, 8, 32):
        for g in (f, compiled):
            unaligned = torch.zeros(8 * 32 + 1, device=DEVICE)[1:].view(8, 32)
            with pytest.raises(AssertionError, match="aligned"):
                g(unaligned, columns, 16)


def test_another_kernel_of_the_same_name() -> None:
    f = dynamo.compile(lambda x, y, kernel: launched(kernel, x, y), fullgraph=True)
    x, y = data(20), data(20)
    torch.testing.assert_close(f(x, y, add_scaled), x + 2 * y)
    torch.testing.assert_close(f(x, y, other_kernel()), x - 2 * y)


def launched(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[blocks(x.numel())](x, y, out, x.numel(), 2.0, BLOCK=16)
    return out


def other_kernel() -> Any:
    @triton.jit
    def add_scaled(x_ptr, y_ptr, out_ptr, n, s, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        y = tl.load(y_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, x - y * s, mask=offsets < n)

    return add_scaled


if hasattr(torch.library, "triton_op"):

    @torch.library.triton_op(f"{LIBRARY}::doubled", mutates_args={})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        torch.library.wrap_triton(add_scaled)[blocks(n)](x, x, out, n, 1.0, BLOCK=16)
        return out

    doubled.register_autograd(lambda ctx, g: g * 2)


def test_an_operator_of_kernels() -> None:
    if DEVICE == "cpu":
        pytest.skip("torch refuses interpreted kernels")

    def f(x: torch.Tensor) -> Any:
        out = doubled(x.sin()).cos()
        return out.detach(), torch.autograd.grad(out.sum(), x)

    check(f, lambda: (data(4, 12).requires_grad_(),), reference=lambda x: plainly(x), slack=16.0)


def plainly(x: torch.Tensor) -> Any:
    out = (x.sin() * 2).cos()
    return out.detach(), torch.autograd.grad(out.sum(), x)


def test_wrapped_kernels() -> None:
    def f(x: torch.Tensor) -> Any:
        out = torch.empty_like(x)
        torch.library.wrap_triton(tuned)[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out * 2

    compiled = dynamo.compile(f, fullgraph=True)
    x = data(4, 12)
    torch.testing.assert_close(compiled(x), (x + 1) * 2)


@triton.jit
def odd(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    a = x_ptr
    for k in range(2):
        b = a + k
        a = y_ptr if k else b
    tl.store(b, 1.0)


@triton.jit
def strange(x_ptr, y_ptr):
    tl.inline_asm_elementwise("st", "r", [y_ptr], dtype=tl.int32, is_pure=False, pack=1)
    value = tl.load(x_ptr)
    tl.store(y_ptr + value, value)


def test_what_kernels_write() -> None:
    kernels = (add_scaled, double_in_place, count, power, odd, strange)
    written = {kernel: {name for name in written_names(kernel.fn) if name.endswith("_ptr")} for kernel in kernels}
    assert written == {
        add_scaled: {"out_ptr"}, double_in_place: {"x_ptr"}, count: {"total_ptr"}, power: {"out_ptr"},
        odd: {"x_ptr", "y_ptr"}, strange: {"y_ptr"},
    }  # fmt: skip
    assert written_names(len) is None
