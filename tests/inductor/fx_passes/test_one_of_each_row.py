"""One element of each row is written: a comparison of columns, with eager's values and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inductor.fx_passes import one_of_each_row
from inductor.fx_passes.one_of_each_row import WRITES, compare_columns

ROWS, WIDTH = 5, 20


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_of_each_row, "on_gpu", lambda device: True)


def margin(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    z = x.clone()
    z[torch.arange(ROWS), at] = v
    return z


def added(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return (x * 2).index_put((torch.arange(ROWS), at), v, accumulate=True)


def one_number(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.sin().index_put((torch.arange(0, ROWS), at), v[0])


def smoothed(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return torch.full_like(x, 0.1).scatter(1, at[:, None], 0.9)


def scattered(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.exp().scatter(-1, at[:, None], v[:, None])


def scattered_and_added(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.exp().scatter_add(1, at[:, None], v[:, None])


def along_the_first(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.t().cos().scatter(0, at[None], v[None])


def of_an_argument(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.index_put((torch.arange(ROWS), at), v)


def rows_in_some_order(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.sin().index_put((at % ROWS, at), v)


def two_of_each(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    places = torch.stack([at % WIDTH, (at + 3) % WIDTH], 1)
    return x.sin().scatter(1, places, torch.stack([v, v], 1))


def some_rows(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x.sin().scatter(1, at[:3, None], v[:3, None])


def few_columns(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return x[:, :8].sin().scatter(1, at[:, None] % 8, v[:, None])


def of_complex_numbers(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    return torch.complex(x, x).exp().index_put((torch.arange(ROWS), at), torch.complex(v, v))


COMPARED = [
    margin, added, one_number, smoothed, scattered, scattered_and_added, along_the_first]
LEFT = [of_an_argument, of_complex_numbers, rows_in_some_order, two_of_each, some_rows, few_columns]
INDEXED = [margin, added, one_number]
Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(*columns: int) -> tuple[Tensor, ...]:
    at = torch.tensor(columns) if columns else torch.randint(0, WIDTH, (ROWS,))
    return torch.randn(ROWS, WIDTH), at, torch.randn(ROWS)


def compared(program: Program, *given: Tensor) -> Any:
    module = make_fx(torch.func.functionalize(program), tracing_mode="fake")(*given)
    return compare_columns(module)


def writes(module: Any) -> int:
    return sum(node.target in WRITES for node in module.graph.nodes)


@pytest.mark.parametrize("program", COMPARED + LEFT, ids=lambda each: each.__name__)
def test_graphs(program: Program) -> None:
    given = inputs()
    module = compared(program, *given)
    assert (writes(module) == 0) == (program in COMPARED)
    found, wanted = module(*given), program(*given)
    assert found.stride() == wanted.stride() and torch.equal(found, wanted)


@pytest.mark.parametrize("program", INDEXED, ids=lambda each: each.__name__)
def test_from_the_end(program: Program) -> None:
    given = inputs(-1, -20, 3, -7, 19)
    module = compared(program, *given)
    assert not writes(module) and torch.equal(module(*given), program(*given))


@pytest.mark.parametrize("column", [WIDTH, -WIDTH - 1])
@pytest.mark.parametrize("program", COMPARED, ids=lambda each: each.__name__)
def test_out_of_range(program: Program, column: int) -> None:
    module = compared(program, *inputs())
    given = inputs(0, 1, column, 3, 4)
    for run in (program, module):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            run(*given)


def test_negative_for_a_scatter() -> None:
    module = compared(scattered, *inputs())
    with pytest.raises(RuntimeError, match="out of bounds"):
        module(*inputs(0, 1, -1, 3, 4))
