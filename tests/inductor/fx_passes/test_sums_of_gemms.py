"""Large results of GEMMs are added up by GEMMs, in one memory, with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inductor.config import config
from inductor.fx_passes import places, sums_of_gemms
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.places import SUMS
from inductor.fx_passes.sums_of_gemms import add_in_gemms
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_gpu(places, sums_of_gemms)
    monkeypatch.setattr(sums_of_gemms, "LARGE", 1)


def chunks(x: Tensor, w: Tensor) -> Any:
    """A head's gradient, chunk by chunk."""
    total = torch.zeros(())
    for part in x.chunk(3):
        total = total + F.linear(part, w).logsumexp(-1).sum()
    return torch.autograd.grad(total, w)


def tied(x: Tensor, w: Tensor) -> Any:
    """An embedding whose table is the head, too: its rows come last, which no GEMM makes."""
    rows = F.embedding(torch.arange(6) % 4, w)
    return torch.autograd.grad((rows @ w.t()).sin().sum(), w)


def of_two(x: Tensor, w: Tensor) -> Any:
    return (x @ w + x.sin() @ w,)


def turned(x: Tensor, w: Tensor) -> Any:
    return ((x @ w).t() + w.exp() @ x.cos().t(),)


def before_what_is_added_to(x: Tensor, w: Tensor) -> Any:
    """The operands of the GEMM would have to be there for longer."""
    product = x @ w
    return (product + (x @ w.exp()).sin(),)


def wanted_twice(x: Tensor, w: Tensor) -> Any:
    first = x @ w
    return first + x.sin() @ w, first * 2


def read_by_a_kernel(x: Tensor, w: Tensor) -> Any:
    return ((x @ w + x.sin() @ w).exp(),)


def of_a_row(x: Tensor, w: Tensor) -> Any:
    return (x @ w + w[0] * 2,)


def of_an_argument(x: Tensor, w: Tensor) -> Any:
    return (x + x @ w,)


CASES = {chunks: 2, of_two: 1, turned: 1}
APART = [tied, read_by_a_kernel, before_what_is_added_to, wanted_twice, of_a_row, of_an_argument]


def given() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("program", [*CASES, *APART], ids=lambda each: each.__name__)
def test_values(program: Callable[..., Any]) -> None:
    x, w = given()
    module = make_fx(program, tracing_mode="fake")(x, w)
    add_in_gemms(module)
    sums = module.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert len(sums) == CASES.get(program, 0)
    torch.testing.assert_close(tuple(module(x, w)), tuple(program(x, w)))
    write_in_place(module, LOWERINGS.__contains__)
    assert sum(node.target in SUMS.values() for node in module.graph.nodes) == len(sums)
    torch.testing.assert_close(tuple(module(x, w)), tuple(program(x, w)))


def test_templates_are_followed_by_kernels() -> None:
    module = make_fx(of_two, tracing_mode="fake")(*given())
    with config.patch(max_autotune=True):
        add_in_gemms(module)
    assert not module.graph.find_nodes(op="call_function", target=aten.addmm.default)


def test_small_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_of_gemms, "LARGE", 1 << 20)
    module = make_fx(of_two, tracing_mode="fake")(*given())
    add_in_gemms(module)
    assert not module.graph.find_nodes(op="call_function", target=aten.addmm.default)
