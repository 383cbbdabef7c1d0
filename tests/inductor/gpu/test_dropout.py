"""Dropout in kernels, without a GPU: the numbers of ATen's kernels, and what becomes of graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_dropout import BLOCKS, Generator, mask_of, native_dropout, on_cpu

import dynamo
from dynamo.aot.api import compile_inference, compile_training
from dynamo.aot.boxed import run_as_it_is
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.fx_passes.dropout import draw_in_kernels
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.interpret import interpret_graph
from inductor.ir.philox import draw_of, keeps, limit_of, philox
from inductor.lowering.run import lower_graph
from inductor.operators.dropout_ops import MASK, STATE
from inductor.scheduler.run import schedule_graph

aten = torch.ops.aten
dropout = torch.native_dropout


def signed(number: int) -> torch.Tensor:
    return torch.tensor(number - (1 << 64) if number >= 1 << 63 else number)


@pytest.mark.parametrize(("key", "counter", "subsequence", "numbers"), [
    (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (2**64 - 1, 2**64 - 1, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_known_answers(key, counter, subsequence, numbers) -> None:
    """Those of the authors of Philox."""
    assert tuple(map(int, philox(*map(signed, (key, counter, subsequence))))) == numbers


def test_limits() -> None:
    assert limit_of(1e-12) == 2**32 - 128  # float32(1 - p) is 1, and so are the greatest numbers
    assert limit_of(1 - 1e-12) == 0
    for rate in (0.1, 0.5, 0.75):
        below = torch.tensor([limit_of(rate) - 1, limit_of(rate)]).float() * 2.0**-32 + 2.0**-33
        assert (below < torch.tensor(1 - rate, dtype=torch.float32)).tolist() == [True, False]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("elements", [1, 7, 255, 258, 1020, 4096, 768 * 8, 768 * 8 + 2, 768 * 4 + 3, 768 * 20, 3 * 768 * 4])
def test_the_same_elements_as_atens_threads_keep(elements, itemsize) -> None:
    offset, seed = 12, 0xDEADBEEFCAFE
    found = keeps(torch.tensor(seed), torch.tensor(offset), torch.arange(elements), draw_of(elements, itemsize, 0.3, BLOCKS))
    assert torch.equal(found, mask_of(elements, itemsize, 0.3, seed, offset))


def chain(x, w):
    y, _ = dropout(x * 2, 0.25, True)
    return (y + x).sin() @ w


def two(x, w):
    y, _ = dropout(x + 1, 0.5, True)
    z, _ = dropout((y @ w).relu(), 0.1, True)
    return z * 3, y.sum(-1)


def halves(x, w):
    y, _ = dropout((x * 3).bfloat16(), 0.5, True)
    z, _ = dropout((x * 3).half().t().contiguous().t(), 0.9, True)
    return y, z, y.float() * z.float()


def infinite(x, w):
    y, _ = dropout(x / (x > 0), 0.5, True)
    return y


def odd_sizes(x, w):
    y, _ = dropout(x[:3, :5].exp(), 0.5, True)
    z, _ = dropout(x[:2, :3].cos() + 1, 0.2, True)
    return y, z


def normed(x, w):
    y, _ = dropout(x @ w, 0.1, True)
    y = F.layer_norm(y + x, (x.shape[-1],))
    z, _ = dropout(y, 0.1, True)
    return F.layer_norm(z + y, (x.shape[-1],))


PROGRAMS = [chain, two, halves, infinite, odd_sizes, normed]


def eager_of(generator: Generator, program: Any, monkeypatch: pytest.MonkeyPatch, *inputs: torch.Tensor) -> Any:
    with monkeypatch.context() as patch:
        patch.setitem(program.__globals__, "dropout", lambda x, p, train: native_dropout(generator, x, p))
        return program(*inputs)


def flat(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def lowered(module: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    graph = lower_graph(module).graph
    return lambda *inputs: tuple(interpret_graph(graph, inputs))


@pytest.mark.parametrize("way", [lowered, lambda module, fakes: run_as_it_is(module)], ids=["loops", "operators"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program, way, monkeypatch) -> None:
    ours, theirs = Generator(), Generator()
    on_cpu(monkeypatch, ours)
    dynamo.reset()

    def backend(gm, example_inputs):
        return compile_inference(
            gm, example_inputs, lambda module, fakes: way(draw_in_kernels(module), fakes),
            decompositions=decompositions())  # fmt: skip

    compiled = dynamo.compile(program, backend=backend)
    for _ in range(2):
        x, w = torch.randn(16, 48), torch.randn(48, 48)
        found, wanted = compiled(x, w), eager_of(theirs, program, monkeypatch, x, w)
        for one, other in zip(flat(found), flat(wanted), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5, equal_nan=True)
            assert one.stride() == other.stride()
        assert (ours.offset, ours.drawn) == (theirs.offset, theirs.drawn)


@pytest.mark.parametrize("program", [chain, two, normed], ids=lambda f: f.__name__)
def test_training(program, monkeypatch) -> None:
    """Gradients, and what forward keeps: two numbers, no mask."""
    ours, theirs = Generator(), Generator()
    on_cpu(monkeypatch, ours)
    dynamo.reset()
    kept: list[Any] = []

    def forward(module, fakes):
        kept.extend(n.meta["val"] for n in module.graph.output_node().args[0] if n is not None)
        return lowered(module, fakes)

    def backward(module, fakes):
        targets = [node.target for node in module.graph.nodes]
        assert MASK in targets and STATE not in targets
        return lowered(module, fakes)

    def backend(gm, example_inputs):
        return compile_training(
            gm, example_inputs, forward, backward, decompositions=decompositions(), rewrite=draw_in_kernels)

    compiled = dynamo.compile(program, backend=backend)
    for _ in range(2):
        given = [torch.randn(16, 48, requires_grad=True), torch.randn(48, 48, requires_grad=True)]
        twins = [each.detach().clone().requires_grad_() for each in given]
        found, wanted = flat(compiled(*given)), flat(eager_of(theirs, program, monkeypatch, *twins))
        sum(each.square().sum() for each in found).backward()
        sum(each.square().sum() for each in wanted).backward()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-4)
        for one, other in zip(given, twins, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-4, atol=2e-3)
        assert ours.drawn == theirs.drawn
    assert not any(value.dtype is torch.bool for value in kept)
    assert [tuple(value.shape) for value in kept if value.dtype is torch.int64] == [(2,)]


def captured(program: Any, *inputs: torch.Tensor, training: bool = False) -> list[torch.fx.GraphModule]:
    """The graph after the pass, joint if training."""
    found: list[torch.fx.GraphModule] = []

    def keep(module, *_):
        found.append(draw_in_kernels(module))
        return found[-1]

    def backend(gm, example_inputs):
        if training:
            run = lambda module, fakes: run_as_it_is(module)  # noqa: E731
            return compile_training(gm, example_inputs, run, run, decompositions=decompositions(), rewrite=keep)
        return compile_inference(gm, example_inputs, lambda m, f: run_as_it_is(keep(m)), decompositions=decompositions())

    dynamo.reset()
    dynamo.compile(program, backend=backend)(*inputs)
    return found


def targets_of(module: torch.fx.GraphModule) -> list[Any]:
    wanted = (MASK, STATE, aten.native_dropout.default, aten.rand_like.default, aten.bernoulli.p)
    return [node.target for node in module.graph.nodes if node.target in wanted]


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return dropout(grad + 1, 0.5, True)[0]


def test_what_draws_between_them_keeps_its_place(monkeypatch) -> None:
    on_cpu(monkeypatch, Generator())

    def program(x):
        a = dropout(x + 1, 0.5, True)[0] + dropout(x + 2, 0.5, True)[0]
        return dropout(a * torch.rand_like(a), 0.1, True)[0]

    (module,) = captured(program, torch.randn(8, 8))
    assert targets_of(module) == [STATE, MASK, MASK, aten.rand_like.default, STATE, MASK]
    states = [node for node in module.graph.nodes if node.target is STATE]
    assert [list(state.args[0]) for state in states] == [[64, 64], [64]]
    assert [list(node.args[1]) for node in module.graph.nodes if node.target is MASK] == [[], [64], []]


@pytest.mark.parametrize("program", [
    lambda x: dropout(x, 0.5, True)[0],  # may begin anywhere in memory
    lambda x: dropout(x.view(-1), 0.5, True)[0],
    lambda x: dropout((x + 1)[:, :4], 0.5, True)[0],  # not dense
    lambda x: dropout((x + 1).view(-1)[1:], 0.5, True)[0],  # begins at the wrong place
    lambda x: dropout((x + 1)[0].expand(8, 8), 0.5, True)[0],
    lambda x: dropout((x[:7, :5] + 1).t(), 0.5, True)[0],  # odd: in the order of indices
    lambda x: dropout((x + 1).double(), 0.5, True)[0],
    lambda x: dropout(x + 1, 1.0, True)[0],
])  # fmt: skip
def test_left_to_aten(program, monkeypatch) -> None:
    on_cpu(monkeypatch, Generator())
    (module,) = captured(program, torch.randn(8, 8))
    assert targets_of(module) == [aten.native_dropout.default]


def test_views_that_begin_as_their_base_are_served(monkeypatch) -> None:
    on_cpu(monkeypatch, Generator())
    def program(x):
        y = x + 1
        odd = dropout((x[:7, :5] * 2)[:, None], 0.5, True)[0]
        return dropout(y.view(-1)[4:], 0.5, True)[0], dropout(y.t(), 0.5, True)[0], odd

    (module,) = captured(program, torch.randn(8, 8))
    assert targets_of(module) == [STATE, MASK, MASK, MASK]


def test_in_backward_it_is_atens(monkeypatch) -> None:
    on_cpu(monkeypatch, Generator())
    x = torch.randn(8, 8, requires_grad=True)
    (module,) = captured(lambda x: _Doubled.apply(dropout(x + 1, 0.5, True)[0]) + 1, x, training=True)
    assert targets_of(module) == [STATE, MASK, aten.native_dropout.default]


def test_where_the_generator_is_unknown_it_is_atens(monkeypatch) -> None:
    on_cpu(monkeypatch, Generator())
    monkeypatch.setattr("inductor.fx_passes.dropout.why_not", lambda device: "a test")
    (module,) = captured(lambda x: dropout(x + 1, 0.5, True)[0], torch.randn(8, 8))
    assert targets_of(module) == [aten.native_dropout.default]


def layers(x, w):
    for _ in range(3):
        x = dropout((x @ w) * 2, 0.3, True)[0] + x
    return x


def test_layers_share_one_function(monkeypatch) -> None:
    """Their draws differ, and what they skip is a number that each launch has."""
    on_cpu(monkeypatch, Generator())
    (module,) = captured(layers, torch.randn(16, 32), torch.randn(32, 32))
    graph = lower_graph(module).graph
    kernels = schedule_graph(graph, 8).kernels()
    sources = [print_kernel(kernel, graph.layouts()).sources[0] for kernel in kernels]
    drawing = [source for source in sources if "k_keep(" in source.text]
    assert len(drawing) == 3 and len({source.text for source in drawing}) == 1
    skips = [number.value for source in drawing for number in source.numbers]
    assert len(set(skips)) == 3 and skips[0] == "0"
