"""Chains of writes into what the graph makes: in place where that is faster, with eager's values everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import dynamo
from inductor.fx_passes import in_place
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.parts import read_parts
from inductor.fx_passes.places import ELEMENTS, PARTS
from inductor.lowering.registry import LOWERINGS
from tests.inductor.fx_passes.writes import LAYOUTS, functional_graph

aten = torch.ops.aten
AT = torch.tensor([4, 1, 4])


def rows(x: Tensor) -> Tensor:
    out = torch.zeros(6, 4)
    for k in range(6):
        out[k] = x[5 - k] * k
    return out


def columns_of_any_memory(x: Tensor) -> Tensor:
    out = torch.empty(4, 6).fill_(0.5).t()
    for k in range(4):
        out[:, k] = x[:, 3 - k]
        out[1:4, k] += 1
    return out


def steps(x: Tensor) -> tuple[Tensor, Tensor]:
    out, state = torch.zeros_like(x), x[0] * 0
    for k in range(6):
        state = state * 0.5 + x[k]
        out[k] = state
    return out, state


def each_reads_the_last(x: Tensor) -> Tensor:
    out = x * 1
    for k in range(1, 6):
        out[k] = out[k - 1] * 0.5 + out[k]
    return out


def a_cache(x: Tensor) -> tuple[Tensor, Tensor]:
    cache, total = torch.zeros(2, 6, 4), torch.zeros(2, 4)
    for k in range(6):
        cache[:, k : k + 1] = x[k] + k
        total = total + cache[:, : k + 1].sum(1)
    return cache, total


def padded(x: Tensor) -> Tensor:
    out = torch.full((4, 8, 4), -1.0)
    for k in range(4):
        out[k, : k + 2] = x[: k + 2] + k
    return out


def every_second(x: Tensor) -> Tensor:
    out = torch.zeros(6, 8)
    out[:, 0::2] = x.sin()
    out[:, 1::2] = x.cos()
    return out


def at_rows(x: Tensor) -> Tensor:
    out = torch.zeros(6, 4)
    out[AT[:2]] = x[:2]
    out.index_add_(0, AT, x[3:])
    out[AT, AT % 4] = out.sum(0)[AT % 4] * 0
    return out.scatter_(0, AT[None, :2], 3.0)


def into_a_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y[AT[:2]] = 1.0
    y.index_add_(0, AT, x[:3])
    return y + x


def a_view_of_what_is_made(x: Tensor) -> Tensor:
    out = torch.zeros(24)
    square = out.view(6, 4)
    for k in range(6):
        square[k] = x[k]
        out[k] += 1
    return out


IN_PLACE = [
    rows, columns_of_any_memory, steps, each_reads_the_last, a_cache, padded, every_second, at_rows, into_a_copy,
    a_view_of_what_is_made,
]  # fmt: skip


def old_is_wanted(x: Tensor) -> tuple[Tensor, ...]:
    first = torch.zeros(6, 4).index_add(0, AT, x[:3]).index_add(0, AT, x[3:])
    second = first.index_add(0, AT, x[:3]).index_copy(0, AT[:2], x[:2])
    return first, second, second * first


def two_ways(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y.index_add(0, AT, x[:3]).index_add(0, AT, x[3:]), y.index_add(0, AT, x[1:4]).index_copy(0, AT[:2], x[:2])


def a_part_of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[1:].index_add(0, AT, x[:3]).index_copy(0, AT[:2], x[:2])
    whole = x.index_add(0, AT, x[:3]).index_copy(0, AT[:2], x[:2])
    return part, whole


def over_itself(x: Tensor) -> Tensor:
    y = x * 2
    for k in range(1, 6):
        y[k:] = y[:-k].clone()
        y[:, 1:] += y[:, :-1].clone()
    return y


def returned_twice(x: Tensor) -> tuple[Tensor, ...]:
    out = torch.zeros(6, 4)
    for k in range(6):
        out[k] = x[k]
    return out, out[0], out.t(), out * 1


def of_other_types(x: Tensor) -> tuple[Tensor, ...]:
    whole, half, truth, complexes = (torch.zeros(6, 4, dtype=dtype) for dtype in
                                     (torch.int64, torch.float16, torch.bool, torch.complex64))
    for k in range(6):
        for out in (whole, half, truth, complexes):
            out[k] = x[k]
            out[k, 0] = k
    return whole, half, truth, complexes


def numbers(x: Tensor) -> tuple[Tensor, ...]:
    whole, y = torch.zeros(6, 4, dtype=torch.int8), x * 1
    for k, number in enumerate((1.75, 3, True, -2, 0.0)):
        whole[k].copy_(number)
        y[k].copy_(number)
    return whole, y


def nothing(x: Tensor) -> Tensor:
    out = x * 1
    for k in range(6):
        out[k:k] = x[:0]
        out[k, :0] = 1.0
    return out


OTHERS = [
    old_is_wanted, two_ways, a_part_of_an_input, over_itself, returned_twice, of_other_types, numbers, nothing,
]  # fmt: skip


@pytest.fixture(autouse=True)
def kernels_cost_nothing(monkeypatch: Any) -> None:
    """So that small tensors are written as large ones are."""
    monkeypatch.setattr(in_place, "COPIED_IN_A_CALL", 1)
    monkeypatch.setattr(in_place, "PARTS_OF_A_PASS_ON_CPU", 0.1)


@pytest.mark.parametrize("program", [*IN_PLACE, *OTHERS], ids=lambda program: program.__name__)
@pytest.mark.parametrize(("layout", "dynamic"), [("dense", False), ("part", False), ("turned", True)])
def test_values(program: Callable[..., Any], layout: str, dynamic: bool) -> None:
    compiled = dynamo.compile(program, fullgraph=True, dynamic=dynamic)
    for factor in (1, 3):
        x = LAYOUTS[layout]() * factor
        want, got = program(x), compiled(x)
        torch.testing.assert_close(got, want)
        assert [one.stride() for one in _listed(got)] == [one.stride() for one in _listed(want)]
        assert x.tolist() == (LAYOUTS[layout]() * factor).tolist()


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda program: program.__name__)
def test_no_copy(program: Callable[..., Any]) -> None:
    module, _ = functional_graph(program)
    module = write_in_place(read_parts(module), LOWERINGS.__contains__)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    assert not {node.target for node in nodes} & {*PARTS, *ELEMENTS}


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def test_as_many_copies_as_old_versions_are_wanted() -> None:
    for program, copies in ((old_is_wanted, 1), (two_ways, 1), (a_part_of_an_input, 2)):
        dynamo.reset()
        module, _ = functional_graph(program)
        module = write_in_place(read_parts(module), LOWERINGS.__contains__)
        targets = [node.target for node in module.graph.nodes]
        assert targets.count(aten.clone.default) == copies, program
        assert not {*targets} & {*PARTS, *ELEMENTS}


def test_few_parts_are_computed_with_the_tensor(monkeypatch: Any) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[0] = 1.0
        y[:, -1] = x[:, 0]
        return y + 1

    monkeypatch.undo()
    module, _ = functional_graph(program)
    before = [(node.target, node.args) for node in module.graph.nodes]
    after = write_in_place(module, LOWERINGS.__contains__)
    assert before == [(node.target, node.args) for node in after.graph.nodes]


# -- training -----------------------------------------------------------------------------------


def weighted(x: Tensor) -> Tensor:
    return rows(x.sin()).square().sum()


def saved_before_it_is_written(x: Tensor) -> Tensor:
    out, total = torch.zeros(6, 4), x.sum() * 0
    for k in range(6):
        out = out.index_add(0, AT, x[:3] * k).index_add(0, AT % 3, x[3:])
        out[k] = x[k] * x[k - 1]
        total = total + (out * out).sum() * k
        out = out.clone()
    return total


def recurrent(x: Tensor) -> Tensor:
    out, state = torch.zeros(6, 4), torch.zeros(4)
    for k in range(6):
        state = torch.tanh(x[k] + state)
        out[k] = state
    return (out * torch.arange(6.0)[:, None]).sum() + out[-1].sum()


def slices(x: Tensor) -> Tensor:
    total = x.sum() * 0
    for k in range(5):
        total = total + (x[k : k + 2] * (k + 1)).exp().sum() + x[k].sum()
    return total * x[0, 0]


@pytest.mark.parametrize("program", [weighted, saved_before_it_is_written, recurrent, slices], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(program: Callable[..., Any], dynamic: bool) -> None:
    compiled = dynamo.compile(program, fullgraph=True, dynamic=dynamic)
    for factor in (0.05, -0.1):
        x, y = ((LAYOUTS["part"]() * factor).requires_grad_() for _ in range(2))
        want, got = program(x), compiled(y)
        torch.testing.assert_close(got, want)
        want.backward()
        got.backward()
        torch.testing.assert_close(y.grad, x.grad)


def test_what_is_saved_and_written_then_raises_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.zeros(6, 4)
        out[0] = x[0]
        y = out * out
        out[1] = x[1]
        return y.sum()

    for run in (program, dynamo.compile(program)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation|inplace"):
            run(LAYOUTS["dense"]().requires_grad_()).backward()


def test_backward_of_a_chain_copies_nothing() -> None:
    """Its reads of parts are those of the gradient, its sum is one tensor."""
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, has_kernel: Any) -> fx.GraphModule:
        graphs.append(write_in_place(module, has_kernel))
        return graphs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["inductor.fx_passes.pipeline"], "write_in_place", keep)
        x = LAYOUTS["dense"]().requires_grad_()
        dynamo.compile(weighted, backend="inductor")(x).backward()
    targets = [node.target for graph in graphs for node in graph.graph.nodes]
    assert len(graphs) == 2
    assert not {*targets} & {*PARTS, *ELEMENTS}


def test_zeros_have_the_sign_of_eager() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return sum((x[k] * y[k]).sum() for k in range(6)) + (x * y).sum()  # type: ignore[return-value]

    grads = []
    for run in (program, dynamo.compile(program)):
        x, y = LAYOUTS["dense"]().requires_grad_(), torch.full((6, 4), -0.0)
        run(x, y).backward()
        assert x.grad is not None
        grads.append(x.grad.signbit().tolist())
    assert grads[0] == grads[1]


@pytest.mark.parametrize(("whole", "source"), [(torch.int64, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_parts_of_another_dtype_are_converted_before_they_are_added(whole: torch.dtype, source: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        for k in range(6):
            x = x + torch.zeros(6, 40, dtype=whole).select_scatter(y, 0, k % 2)
        return x

    x, y = (torch.arange(240).reshape(6, 40) / 7).to(whole), torch.linspace(-3, 3, 40).to(source) / 7 - 0.4
    assert dynamo.compile(program)(x, y).tolist() == program(x, y).tolist()
