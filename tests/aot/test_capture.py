"""Captured ATen graphs, interpreted on real inputs, do what the program does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import dynamo
from dynamo import aot
from dynamo.aot.program import Observer, run_program
from dynamo.symbolic.tensors.contexts import enter, leave
from tests.aot.compare import check
from tests.aot.programs import (
    PROGRAMS,
    autocast_region,
    captured,
    no_grad_region,
    single_view,
    squares,
    traced,
)
from tests.processes import run_python

IDS = [f"{function.__name__}-{inputs.__name__}" for function, inputs in PROGRAMS]


def clone_outputs(module: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    """A compiler whose outputs own their storage, as a real one's do."""

    return lambda *inputs: tuple(own(out) for out in module(*inputs))


def own(tensor: torch.Tensor) -> torch.Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if 0 in tensor.stride():
        return tensor
    return new.copy_(tensor)


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("function, inputs", PROGRAMS, ids=IDS)
def test_programs(function: Any, inputs: Any, epilogue: bool) -> None:
    with torch.no_grad():
        gm = traced(function)
        compiled = aot.compile_inference(
            gm, list(inputs()), clone_outputs, epilogue_in_graph=epilogue
        )
        for _ in range(2):
            check(function, compiled, inputs)


@pytest.mark.parametrize("function, inputs", PROGRAMS, ids=IDS)
def test_graphs_are_functional(function: Any, inputs: Any) -> None:
    with torch.no_grad():
        graph = aot.capture_forward(traced(function), list(inputs()))
    for node in graph.module.graph.nodes:
        if node.op == "call_function" and node.target.__name__ != "getitem":
            assert isinstance(node.target, torch._ops.OpOverload)
            assert not node.target._schema.is_mutable, node
        if node.op != "output":
            assert node.meta["val"] is not None, node


def test_lone_view_of_an_intermediate_is_fresh() -> None:
    gm = traced(single_view)
    graph = aot.capture_forward(gm, list(squares()))
    assert graph.is_plain
    check(single_view, aot.compile_inference(gm, list(squares()), clone_outputs), squares, views=False)


@pytest.mark.parametrize("function", [no_grad_region, autocast_region])
def test_modes_in_the_graph(function: Any) -> None:
    gm, examples = captured(function, *squares())
    compiled = aot.compile_inference(gm, examples, clone_outputs)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    check(gm.forward, lambda *inputs: tuple(compiled(*inputs)), squares)


def test_plain_graph_has_nothing_around_it() -> None:
    def compiled(x: Any) -> Any:
        return (x.sin(),)

    gm = traced(lambda x: (x.sin(),))
    assert aot.compile_inference(gm, [torch.randn(2)], lambda module, fakes: compiled) is compiled


def test_user_line_is_kept() -> None:
    gm, examples = captured(lambda x: (x.sin() + 1).relu(), torch.randn(3))
    graph = aot.capture_forward(gm, examples)
    calls = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    assert len(calls) == 3
    assert all("test_capture.py" in node.meta["stack_trace"] for node in calls)


def test_equal_constants_are_shared() -> None:
    def program(x: Any) -> Any:
        return x * torch.tensor(2.5) + torch.tensor(2.5) - torch.tensor(-0.0) + torch.tensor(0.0)

    gm, examples = captured(program, torch.randn(3))
    module = aot.capture_forward(gm, examples).module
    assert sum(node.op == "get_attr" for node in module.graph.nodes) == 3


def test_constant_output_is_new_each_call() -> None:
    gm, examples = captured(lambda x: (x + 1, torch.tensor([1.0, 2.0])), torch.randn(3))
    compiled = aot.compile_inference(gm, examples, lambda module, fakes: module.forward)
    at = [out.shape for out in gm(*examples)].index(torch.Size([2]))
    compiled(*examples)[at].add_(1)
    assert compiled(*examples)[at].tolist() == [1.0, 2.0]


def test_dead_code_goes_and_random_numbers_stay() -> None:
    def program(x: Any) -> Any:
        x.sin().cos()
        torch.rand_like(x)
        return x + 1

    module = aot.capture_forward(traced(program), [torch.randn(3)]).module
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert names == ["aten.rand_like.default", "aten.add.Tensor"]


def test_capture_leaves_random_state_alone() -> None:
    gm = traced(lambda x: torch.rand_like(x).bernoulli_(0.5))
    example = torch.randn(3)
    state = torch.get_rng_state()
    aot.capture_forward(gm, [example])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("view", [
    lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:, 3:], lambda x: x.t()[::2],
])
def test_numbers_drawn_in_place_are_eagers(view: Any) -> None:
    """Eager draws in one order for what is contiguous, and in another for what is not."""

    def program(x: torch.Tensor) -> torch.Tensor:
        view(x).normal_()
        return view(x) * 2

    found = []
    for call in (program, dynamo.compile(program)):
        torch.manual_seed(7)
        x = torch.zeros(9, 12)
        found.append((call(x), x, torch.get_rng_state()))
    for ours, eagers in zip(*found, strict=True):
        assert torch.equal(ours, eagers)


def test_numbers_are_checked_at_run_time() -> None:
    gm = traced(lambda x, n: x * n)
    compiled = aot.compile_inference(gm, [torch.ones(2), 3], lambda module, fakes: module.forward)
    assert compiled(torch.ones(2), 3).tolist() == [3, 3]
    assert compiled(torch.ones(2), 5).tolist() == [5, 5]


def test_overlap_at_run_time_runs_the_program() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    compiled = aot.compile_inference(
        traced(program), [torch.ones(3), torch.ones(3)], lambda module, fakes: module.forward
    )
    both = torch.ones(4)
    assert compiled(both[:3], both[1:]).tolist() == [4, 4, 2]
    assert both.tolist() == [2, 2, 2, 1]


def test_inference_mode() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(y)
        return x.view(-1), (x * y).sin()

    with torch.inference_mode():
        compiled = aot.compile_inference(traced(program), list(squares()), clone_outputs)
        check(program, compiled, squares)
        assert all(out.is_inference() for out in compiled(*squares()))


def test_an_inference_tensor_is_not_written_to_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        dynamo.compile(lambda x: x.add_(1))(x)


def test_nothing_else_is_imported() -> None:
    """Capture, and training of what has no in-place operations, load neither compiler nor SymPy."""
    script = """
import sys, torch
import dynamo
from dynamo import aot
gm = torch.fx.symbolic_trace(lambda x, w: torch.nn.functional.gelu(x @ w).sum())
examples = [torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)]
run = lambda module, fakes: module.forward
aot.compile_training(gm, examples, run, run)(*examples)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    done = run_python("-c", script, bare=True)
    assert done.stdout.strip() == "[]", done.stderr


def overlapping() -> list[torch.Tensor]:
    both = torch.ones(4)
    return [both[:3], both[1:]]


REFUSED: list[tuple[str, Any, Any]] = [
    ("item", lambda x, y: x * y.sum().item(), squares),
    ("nonzero", lambda x, y: x.nonzero(), squares),
    ("mask", lambda x, y: x[y > 0], squares),
    ("overlap", lambda x, y: x.add_(1) + y, overlapping),
    ("metadata", lambda x, y: x.t_() + y, squares),
    ("view of other elements", lambda x, y: x.view(torch.int16), squares),
    ("reads what it writes", lambda x, y: x.mul_(x[0]), squares),
    ("writes twice", lambda x, y: x.unsqueeze(0).expand_as(torch.stack([x, x])).zero_(), squares),
    ("needs grad", lambda x, y: x * y, lambda: [torch.ones(2, requires_grad=True)] * 2),
    ("expanded", lambda x, y: x.add_(1), lambda: [torch.ones(1).expand(3)] * 2),
]


@pytest.mark.parametrize("function, inputs", [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(function: Any, inputs: Any) -> None:
    with pytest.raises(aot.Unsupported):
        aot.compile_inference(
            traced(function), list(inputs()), lambda module, fakes: module.forward
        )


def test_an_error_leaves_what_the_program_has_entered() -> None:
    """While a backend runs it to record it."""
    graph = fx.Graph()
    graph.call_function(leave, (graph.call_function(enter, ("sdpa_kernel", ("MATH",), False)),))
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        graph.call_function(torch.zeros, (-1,))
    graph.output(())
    before = torch.backends.cuda.flash_sdp_enabled()
    with pytest.raises(RuntimeError, match="negative"):
        run_program(fx.GraphModule({}, graph), [], lambda tensor: tensor, Observer())
    assert torch.backends.cuda.flash_sdp_enabled() == before
