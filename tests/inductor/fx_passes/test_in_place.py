"""Writes into parts of inputs: done in place where nobody wants the old contents, with eager's values everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.base.config import config
from inductor import metrics
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.places import ELEMENTS, PARTS
from inductor.lowering.registry import LOWERINGS
from tests.inductor.fx_passes.writes import LAYOUTS, functional_graph
from tests.parametrize import rotated

aten = torch.ops.aten
AT = torch.tensor([4, 1])
MASK = torch.arange(24).reshape(6, 4) % 3 == 0
PLACES = torch.tensor([[5, 0, 1, 2], [1, 3, 0, 0]])
CONSTANTS = {"AT": AT, "MASK": MASK, "PLACES": PLACES}


def row(x: Tensor, v: Tensor) -> None:
    x[2] = v


def row_plus(x: Tensor, v: Tensor) -> Tensor:
    x[-1] += v
    return x[-1] * 2


def column(x: Tensor, v: Tensor) -> None:
    x[:, 1] = v[0]


def steps(x: Tensor, v: Tensor) -> None:
    x[::2, 1:] = v[1:]


def view_of_view(x: Tensor, v: Tensor) -> None:
    x[1:5][1:3].add_(v)
    x.t()[1].mul_(2)
    x.unsqueeze(0)[0, 4].zero_()


def several(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    before = x + 1
    x[0] = v
    between = x.sum(0)
    x[1] = between
    x[0:2] = x[2:4] * 2
    return before, between, x.clone()


def at_rows(x: Tensor, v: Tensor) -> None:
    x[AT] = v


def at_rows_plus(x: Tensor, v: Tensor) -> None:
    x[AT] += x[AT.flip(0)]


def equal_rows(x: Tensor, v: Tensor) -> None:
    x.index_put_((torch.tensor([1, 1, 3]),), v * 2, accumulate=True)


def along(x: Tensor, v: Tensor) -> None:
    x.index_copy_(0, AT, torch.outer(v[:2], v))
    x[1:].index_add_(1, AT % 4, x[1:, :2] * 2)
    x.index_fill_(1, AT[1:], 3.0)


def scattered(x: Tensor, v: Tensor) -> None:
    x.scatter_(0, PLACES, x[:2] + 1)
    x.scatter_add_(1, PLACES % 4, x[:2] * 2)
    x.scatter_reduce_(0, PLACES, x[2:4].clone(), "amax")


def masked(x: Tensor, v: Tensor) -> None:
    x[MASK] = 0.5
    x[MASK[:, 0]] = v
    x.t()[:, MASK[:, 1]] = v[:, None]


def columns_of_a_view(x: Tensor, v: Tensor) -> None:
    x[1:4, ..., 1:3].copy_(v[:2])
    x.diagonal()[1:] = 7.0


def swapped(x: Tensor, v: Tensor) -> None:
    x[0], x[1] = x[1].clone(), x[0].clone()


def brought_back(x: Tensor, v: Tensor) -> None:
    x.copy_(x.slice_scatter(x[1:3].select_scatter(v, 0, 1), 0, 1, 3))


IN_PLACE = [
    row, row_plus, column, steps, view_of_view, several, at_rows, at_rows_plus, equal_rows, along, scattered, masked,
    columns_of_a_view, swapped, brought_back,
]  # fmt: skip


def old_is_read(x: Tensor, v: Tensor) -> Tensor:
    y = x.select_scatter(v, 0, 1)
    old = x * 2
    x.copy_(y)
    return old


def two_versions(x: Tensor, v: Tensor) -> Tensor:
    y, z = x.select_scatter(v, 0, 1), x.select_scatter(v, 0, 2)
    x.copy_(y)
    return z + y


def of_another_row(x: Tensor, v: Tensor) -> None:
    x.copy_(x.select_scatter(x[1].index_add(0, AT[1:], v[:1]), 0, 2))


def turned(x: Tensor, v: Tensor) -> None:
    x[:4].copy_(x[:4].t().select_scatter(v, 0, 1))


def part_of_a_version(x: Tensor, v: Tensor) -> None:
    y = x.index_add(0, AT, x[:2])
    x.copy_(x.slice_scatter(y[1:3], 0, 1, 3))


def everything(x: Tensor, v: Tensor) -> None:
    x[1] = v
    x.mul_(2)


def row_of_a_row_shown_thrice(x: Tensor, v: Tensor) -> None:
    rows = x[0].expand(3, 4).select_scatter(v, 0, 0)
    x[0] = rows[1]


COPIED = [
    old_is_read, two_versions, of_another_row, turned, part_of_a_version, everything, row_of_a_row_shown_thrice,
]  # fmt: skip


@rotated("program, layout, dynamic", [*IN_PLACE, *COPIED], LAYOUTS, [False, True],
         ids=lambda value: getattr(value, "__name__", None))
def test_values(program: Callable[..., Any], layout: str, dynamic: bool) -> None:
    compiled = dynamo.compile(program, fullgraph=True, dynamic=dynamic)
    for factor in (1, 3):
        want, got = LAYOUTS[layout](), LAYOUTS[layout]()
        v = torch.arange(1.0, 5.0) * factor
        results, found = program(want, v), compiled(got, v)
        assert got.tolist() == want.tolist()
        assert repr(found) == repr(results)


def windows(x: Tensor, v: Tensor) -> Tensor:
    return v.unfold(0, 2, 1).select_scatter(x[0, :2], 0, 0)


def strided_windows(x: Tensor, v: Tensor) -> Tensor:
    whole = v.as_strided((3, 2), (1, 1))
    return whole.slice_scatter(x[:2, :2], 0, 1) + whole.diagonal_scatter(x[0, :2])


@pytest.mark.parametrize("program", [windows, strided_windows], ids=lambda program: program.__name__)
def test_copies_that_name_elements_twice(program: Callable[..., Any]) -> None:
    """As in ATen, where a copy of overlapping memory overlaps."""
    with config.patch(suppress_errors=True):
        found = dynamo.compile(program)(LAYOUTS["dense"](), torch.arange(10.0, 14.0))
    assert found.tolist() == program(LAYOUTS["dense"](), torch.arange(10.0, 14.0)).tolist()


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda program: program.__name__)
def test_no_copy(program: Callable[..., Any]) -> None:
    module, names = functional_graph(program, torch.ones(4))
    module = write_in_place(module, LOWERINGS.__contains__)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    assert not {node.target for node in nodes} & {*PARTS, *ELEMENTS}
    assert not [n for n in nodes if n.target is aten.copy_.default and n.args[0].op == "placeholder"]
    given: dict[str, Tensor] = {"x": LAYOUTS["dense"](), "v": torch.arange(1.0, 5.0), **CONSTANTS}
    want = given["x"].clone()
    program(want, given["v"])
    module(*[given[name] for name in names])
    assert given["x"].tolist() == want.tolist()


@pytest.mark.parametrize("program", COPIED, ids=lambda program: program.__name__)
def test_copied(program: Callable[..., Any]) -> None:
    module, _ = functional_graph(program, torch.ones(4))
    before = [(node.target, node.args) for node in module.graph.nodes]
    after = write_in_place(module, LOWERINGS.__contains__)
    assert before == [(node.target, node.args) for node in after.graph.nodes]


def test_what_is_written_first_is_read_after() -> None:
    """What is computed where it is used is computed before its source changes."""

    def program(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        a, b = x[1] + v, x.t() * 2
        x[1] = a * a
        c = x[1] - v
        x[1] = c + b[:, 0]
        return a, b, c

    compiled = dynamo.compile(program, fullgraph=True)
    want, got, v = LAYOUTS["dense"](), LAYOUTS["dense"](), torch.ones(4)
    assert repr(compiled(got, v)) == repr(program(want, v))
    assert got.tolist() == want.tolist()


def test_shared_memory_is_seen() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x[1] = y[0] * 2
        return y + 1

    compiled = dynamo.compile(program, fullgraph=True)
    for begin in (0, 1, 5):
        outcomes = []
        for run in (program, compiled):
            whole = torch.arange(40.0).reshape(10, 4)
            result = run(whole[:5], whole[begin : begin + 5])
            outcomes.append((result.tolist(), whole.tolist()))
        assert outcomes[0] == outcomes[1]


def test_values_out_of_range() -> None:
    programs = [
        lambda x, i: x.__setitem__(i, 1.0), lambda x, i: x.index_copy_(0, i, x[:1] * 2),
        lambda x, i: x.index_add_(0, i, x[:1] * 2), lambda x, i: x.scatter_(0, i[:, None], x[:1] * 2),
    ]  # fmt: skip
    for program in programs:
        compiled = dynamo.compile(program, fullgraph=True)
        compiled(torch.zeros(6, 4), torch.tensor([2]))
        for run in (program, compiled):
            with pytest.raises((IndexError, RuntimeError), match="out of bounds") as raised:
                run(torch.zeros(6, 4), torch.tensor([6]))
            if run is program:
                wanted = raised.type
        assert raised.type is wanted


@rotated("dtype, dynamic", [torch.complex64, torch.uint16, torch.float8_e4m3fn], [False, True])
def test_beside_an_input_without_kernels(dtype: torch.dtype, dynamic: bool) -> None:
    """That one is read and written by ATen; the others' parts are still written in place."""

    def program(cache: Tensor, odd: Tensor, at: Tensor, row: Tensor) -> Tensor:
        cache.index_copy_(0, at, row)
        odd[1:2] = odd[:1].clone()
        return cache * 2 + odd[2].to(torch.complex64).real

    def inputs() -> list[Tensor]:
        odd = torch.arange(24).reshape(6, 4).to(torch.complex64 if dtype.is_complex else torch.float32)
        return [LAYOUTS["dense"](), odd.to(dtype), torch.tensor([3]), torch.ones(1, 4)]

    metrics.reset()
    want, got = inputs(), inputs()
    assert dynamo.compile(program, fullgraph=True, dynamic=dynamic)(*got).tolist() == program(*want).tolist()
    assert [x.to(torch.complex64).tolist() for x in got] == [x.to(torch.complex64).tolist() for x in want]
    assert not [name for name in metrics.fallbacks() if "index_copy" in name]


def test_halves_and_whole_numbers() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8, torch.complex64):
        def program(x: Tensor, v: Tensor) -> Tensor:
            x[1:3] = v
            x[AT] = v.flip(0)
            return x[0:2] + v

        want = torch.arange(24).reshape(6, 4).to(dtype)
        got, v = want.clone(), torch.tensor([0, 1, 1, 0]).to(dtype)
        assert repr(dynamo.compile(program)(got, v)) == repr(program(want, v))
        assert got.tolist() == want.tolist()


def test_sizes_that_do_not_fit() -> None:
    """Fakes let some of them pass: nothing is written, and the error is eager's."""
    at, four = torch.tensor([1, 2]), torch.ones(4, 4)
    programs = [
        lambda x: x.__setitem__(torch.tensor([True, False]), 0.0), lambda x: x.__setitem__(x[:, 0] > 4, four[:3, :3]),
        lambda x: x.__setitem__(at, four[0, :3]), lambda x: x.index_put_((at,), four[:3], accumulate=True),
        lambda x: x.index_copy_(0, at, four[:2, :3]), lambda x: x.index_copy_(0, at.int(), four[:2]),
        lambda x: x.index_add_(0, at, four[:2, :1]), lambda x: x.scatter_(0, at[:, None], four[:1, :1]),
    ]  # fmt: skip
    for program in programs:
        for dynamic in (False, True):
            dynamo.reset()
            for run in (program, dynamo.compile(program, dynamic=dynamic)):
                x = LAYOUTS["dense"]()
                with pytest.raises((IndexError, RuntimeError)):
                    run(x)
                assert x.tolist() == LAYOUTS["dense"]().tolist()
