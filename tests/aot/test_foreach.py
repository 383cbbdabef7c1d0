"""Functions of lists are taken apart with eager's meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.aot.foreach import BINARY, BOUNDS, FOREACH
from inductor import metrics

SHAPES = ((3, 4), (5,), (), (0, 2), (2, 1, 3))


def tensors(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = [torch.randn(shape).mul(3) for shape in SHAPES]
    made[1][0], made[1][1], made[0][0, 0] = float("nan"), float("inf"), -0.0
    if not dtype.is_floating_point:
        made = [x.nan_to_num(7.0, 9.0).clamp(-5, 5) for x in made]
    return [x.to(dtype) for x in made]


def arguments(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    kind, form = name.removeprefix("_foreach_").split(".")
    if form == "ScalarAndTensor":
        return (0.75, tensors(dtype))
    lists = {"lerp": 2, "addcmul": 3, "addcdiv": 3, "copy": 2}.get(kind, 1)
    extra: dict[str, tuple[Any, ...]] = {
        "default": (), "Scalar": (0.75,), "List": (tensors(dtype),),
        "ScalarList": ([0.25, 1, -2.0, 3, 0.5],), "Tensor": (torch.tensor(0.75),),
    }  # fmt: skip
    return (*(tensors(dtype) for _ in range(lists)), *extra[form])


def check(function: Any, args: tuple[Any, ...], **options: Any) -> None:
    def program(*args: Any) -> Any:
        return list(function(*args, **options))

    wanted = program(*args)
    found = dynamo.compile(program, fullgraph=True)(*args)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True, atol=1e-6, rtol=2e-6)
        assert x.stride() == y.stride()


@pytest.mark.parametrize("name", FOREACH)
def test_functions_of_lists(name: str) -> None:
    kind, _ = name.split(".")
    args = arguments(name, torch.float32)
    if name != "_foreach_add.Tensor":
        check(getattr(torch, kind, getattr(torch.ops.aten, kind)), args)  # those that write have no function
        return
    found = FOREACH[name](*args, alpha=2)  # where it is captured, eager's kernel reads the tensor
    torch.testing.assert_close(found, list(torch._foreach_add(*args, alpha=2)), equal_nan=True)


@pytest.mark.parametrize("name", [f"_foreach_{name}" for name in (*BINARY, *BOUNDS)])
@pytest.mark.parametrize("form", ["Scalar", "List", "ScalarList"])
def test_numbers_promote_as_in_eager(name: str, form: str) -> None:
    args = arguments(f"{name}.{form}", torch.int32)
    try:
        getattr(torch, name)(*args)
    except RuntimeError:
        return  # integers to negative powers
    check(getattr(torch, name), args)


def test_options() -> None:
    x, y, z = (tensors() for _ in range(3))
    check(torch._foreach_add, (x, y), alpha=0.3)
    check(torch._foreach_sub, (x, y), alpha=-2)
    check(torch._foreach_addcdiv, (x, y, z), value=-0.1)
    check(torch._foreach_addcmul, (x, y, z), value=0.1)


def test_written_lists_are_one_kernel_for_each_tensor() -> None:
    def step(params: list[Tensor], grads: list[Tensor], means: list[Tensor]) -> None:
        torch._foreach_lerp_(means, grads, 0.1)
        roots = torch._foreach_sqrt(torch._foreach_abs(means))
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(params, means, roots, value=-0.1)

    lists = [[torch.randn(n + 2, 3) for n in range(4)] for _ in range(3)]
    given = [[x.clone() for x in column] for column in lists]
    before = metrics.snapshot()
    dynamo.compile(step, fullgraph=True)(*given)
    after = metrics.snapshot()
    step(*lists)
    torch.testing.assert_close(given, lists)
    assert after["extern_calls"] == before["extern_calls"]
    assert after["kernels"] - before["kernels"] <= 4




@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_copies_and_zeros_are_kernels(dtype: torch.dtype) -> None:
    """As Rprop and ASGD keep what the next step reads: of another dtype, of one row for all."""
    def step(first: list[Tensor], second: list[Tensor], given: list[Tensor]) -> None:
        torch._foreach_copy_(first, torch._foreach_mul(given, 2.5))
        torch._foreach_zero_(second)
        torch._foreach_add_(second, first)

    given = [torch.randn(n + 2, 3)[: 1 if n == 1 else None] for n in range(4)]
    lists = [[torch.randn(n + 2, 3).to(dtype) for n in range(4)] for _ in range(2)]
    lists[0][2] = torch.randn(3, 4).to(dtype).t()
    ours = [[x.clone() for x in column] for column in lists]
    before = metrics.snapshot()
    dynamo.compile(step, fullgraph=True)(*ours, given)
    after = metrics.snapshot()
    step(*lists, given)
    torch.testing.assert_close(ours, lists, atol=0, rtol=0)
    assert [x.stride() for x in ours[0]] == [x.stride() for x in lists[0]]
    assert after["extern_calls"] == before["extern_calls"]


@pytest.mark.parametrize("name", ["Rprop", "ASGD"])
@pytest.mark.parametrize("maximize", [False, True])
def test_optimizers_that_copy_lists(name: str, maximize: bool) -> None:
    def made() -> tuple[list[Tensor], Any]:
        torch.manual_seed(3)
        params: list[Any] = [torch.nn.Parameter(torch.randn(4, n + 1)) for n in range(3)]
        return params, getattr(torch.optim, name)(params, lr=0.1, foreach=True, maximize=maximize)

    (params, ours), (wanted, eager) = made(), made()
    compiled = dynamo.compile(lambda: ours.step())
    before = metrics.snapshot()["extern_calls"]
    for n in range(4):
        for p, q in zip(params, wanted, strict=True):
            p.grad = torch.randn_like(p) * n  # of a step without gradients, too
            q.grad = p.grad.clone()
        compiled()
        eager.step()
        torch.testing.assert_close(params, wanted, atol=1e-6, rtol=1e-5)
    for p, q in zip(params, wanted, strict=True):
        torch.testing.assert_close(ours.state[p], eager.state[q], atol=1e-6, rtol=1e-5)
    assert metrics.snapshot()["extern_calls"] == before
