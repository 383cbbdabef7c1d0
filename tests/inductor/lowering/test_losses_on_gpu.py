"""Losses over words as they are lowered for a GPU: what they hold, and their gradients.

Recorded here, then said to be on a GPU before anything is decomposed, and interpreted here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from dynamo.aot import rows
from dynamo.aot.api import min_cut, prepare_joint
from dynamo.aot.fakes import facts_of, is_fake
from dynamo.aot.joint import capture_joint
from dynamo.aot.partition import partition_joint
from dynamo.aot.worlds import capture_in_world
from inductor.fx_passes.losses import sizes
from inductor.fx_passes.pipeline import decompositions, joint_laid_out, rewritten
from inductor.ir import interpret
from inductor.ir.gpus import MEASURED
from inductor.ir.graph import ExternKernel
from inductor.lowering import builder, run
from inductor.lowering.run import lower_graph
from inductor.scheduler import fuse
from inductor.scheduler.peak import peak_of, with_less_held
from inductor.scheduler.run import schedule_graph

COUNT, TERMS, WORDS = 64, 16, 1000
LOGITS = COUNT * WORDS * 2  # bytes in half precision
aten = torch.ops.aten
Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """These logits count as large."""
    for module in (builder, run):
        monkeypatch.setattr(module, "LARGE", LOGITS)
    monkeypatch.setattr(builder, "LONG", COUNT * WORDS * 4)
    monkeypatch.setattr(builder, "MANY", 128)
    monkeypatch.setattr(fuse, "LARGE_RESULT", LOGITS)
    monkeypatch.setattr(rows, "LARGE", 1)
    monkeypatch.setattr(sizes, "properties_of", lambda device: MEASURED)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)  # for factories of fakes
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


GPU = torch.device("cuda", 0)


def moved(value: Any) -> Any:
    """A fake, or several, as of a GPU."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(moved, value))
    if not is_fake(value):
        return value
    facts, cache = facts_of(value), value.world.cache
    facts = cache.facts(facts.size, facts.stride, facts.offset, facts.dtype, GPU)
    return value.world.make(facts, value.token)


def on_gpu(module: fx.GraphModule) -> fx.GraphModule:
    for node in module.graph.nodes:
        node.meta["val"] = moved(node.meta.get("val"))
        if node.target is aten.log_sigmoid_forward.default:  # which keeps nothing there
            made, kept = node.meta["val"]
            facts = made.world.cache.facts((0,), (1,), 0, kept.dtype, GPU)
            node.meta["val"] = made, made.world.make(facts)
        if node.target is operator.getitem:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
        node.kwargs = {name: GPU if isinstance(given, torch.device) else given
                       for name, given in node.kwargs.items()}
    return module


class Step:
    """A loss and its gradients. peaks: of forward and of backward, beside the operands; externs:
    the operators that the library computes."""

    def __init__(self, program: Program, given: list[Tensor]) -> None:
        gm = fx.symbolic_trace(program)
        joint, world = capture_in_world(
            lambda world: capture_joint(gm, given, world), gm, given, False)
        assert joint is not None
        module = prepare_joint(on_gpu(joint.module), decompositions(), joint_laid_out, world)
        parts = partition_joint(joint, module, min_cut, world.table(), copies=True)
        (backward,) = parts.backwards
        self.saved, self.values = backward.saved, joint.values
        self.graphs = [lower_graph(rewritten(half)).graph
                       for half in (parts.forward, backward.module)]
        self.peaks, self.externs = [], set[str]()
        dying = [[], [b.name for b in self.graphs[1].inputs if b is not None and (
            b.position >= len(self.saved) or self.saved[b.position][0] != "input")]]
        for graph, names in zip(self.graphs, dying, strict=True):
            schedule = with_less_held(graph, schedule_graph(graph, 8), names)
            self.peaks.append(peak_of(graph, schedule, names))
            self.externs |= {str(n.target) for n in graph.nodes if isinstance(n, ExternKernel)}

    def __call__(self, *given: Tensor) -> list[Tensor]:
        made = interpret.interpret_graph(self.graphs[0], given)
        kinds = {"input": given, "output": made}
        values = [kinds[kind][at] for kind, at in self.saved]
        return [made[0], *interpret.interpret_graph(self.graphs[1], [*values, torch.ones(())])]


def soft_cap(h: Tensor, w: Tensor, r: Tensor, y: Tensor) -> Tensor:
    z = torch.tanh((h @ w.t()).float() / 30) * 30
    lse, counts = torch.logsumexp(z, -1), (y != 3).float()
    loss = F.cross_entropy(z, y, reduction="sum", ignore_index=3) / counts.sum()
    return loss + 1e-2 * (lse.square() * counts).sum() / counts.sum()


def log_probability(z: Tensor, y: Tensor) -> Tensor:
    return (torch.gather(z.log_softmax(-1), -1, y[..., None]).squeeze(-1) * (y != 3)).sum(-1)


def preference(h: Tensor, w: Tensor, r: Tensor, y: Tensor) -> Tensor:
    by_row, y = h.view(8, -1, TERMS), y.view(8, -1)
    mine = log_probability((by_row @ w.t()).float(), y)
    other = log_probability((by_row.detach() @ r.t()).float(), y)
    gain = 0.1 * ((mine - other)[:4] - (mine - other)[4:])
    return -(F.logsigmoid(gain) * 0.9 + F.logsigmoid(-gain) * 0.1).mean()


def distillation(h: Tensor, w: Tensor, r: Tensor, y: Tensor) -> Tensor:
    mine = F.log_softmax((h @ w.t()).float() / 2, -1)
    other = F.log_softmax((h.detach() @ r.t()).float() / 2, -1)
    counts = y != 3
    each = F.kl_div(mine, other, log_target=True, reduction="none").sum(-1)
    return (each * counts).sum() / counts.sum() * 4 + 0.5 * F.cross_entropy(2 * mine, y)


def focal(h: Tensor, w: Tensor, r: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy((h @ w.t()).float(), y, reduction="none", ignore_index=3)
    return ((1 - torch.exp(-each)) ** 2 * each).sum() / (y != 3).sum()


def binary(h: Tensor, w: Tensor, r: Tensor, y: Tensor) -> Tensor:
    z = (h @ w.t()).float()
    hot = y.new_zeros(COUNT, WORDS).scatter(-1, y[:, None], 1).float()  # `F.one_hot` on a GPU
    return (F.binary_cross_entropy_with_logits(z, hot, reduction="none").sum(-1) * (y != 3)).mean()


# How many times something of the size of the logits is there, in half precision, in forward and in
# backward: theirs, those of a teacher, and the gradient, which is written over them where it has
# their sizes.
CASES = {
    soft_cap: (1, 1), preference: (1, 1), distillation: (2, 3), focal: (1, 1), binary: (1, 1)}


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_nothing_wide_is_there_but_logits(program: Program) -> None:
    torch.manual_seed(0)
    h, w, r = torch.randn(COUNT, TERMS), torch.randn(WORDS, TERMS) / 4, torch.randn(WORDS, TERMS) / 4
    y = torch.randint(0, WORDS, (COUNT,))
    y[::5] = 3
    half = [value.bfloat16() for value in (h, w, r)]
    given = [half[0].requires_grad_(), half[1].requires_grad_(), half[2], y]
    step = Step(program, given)
    loss, *gradients = step(*(value.detach() for value in given))
    exact = [half[0].detach().double().requires_grad_(), half[1].detach().double().requires_grad_(),
             half[2].double()]
    with_float = fx.symbolic_trace(program)
    for node in with_float.graph.nodes:
        if node.target == "float":
            node.target = "double"
    with_float.recompile()
    want = with_float(*exact, y)
    want.backward()
    torch.testing.assert_close(loss.double(), want.detach(), rtol=2e-2, atol=1e-3)
    for found, leaf in zip(gradients, exact[:2], strict=True):
        assert leaf.grad is not None
        error = (found.double() - leaf.grad).norm() / leaf.grad.norm()
        assert found.dtype is torch.bfloat16 and error < 2e-2
    numbers = 64 * COUNT * 8 + 2 * WORDS * TERMS * 2  # columns, gradients
    for peak, times in zip(step.peaks, CASES[program], strict=True):
        assert times * LOGITS <= peak < times * LOGITS + numbers
    assert not any("log_sigmoid" in name or "scatter" in name for name in step.externs)


def words_in_the_middle(z: Tensor, y: Tensor) -> Tensor:
    """(N, C, T) logits, C dense in memory as a head gives them, with label smoothing."""
    each = F.cross_entropy(z.transpose(1, 2).float(), y, ignore_index=3, label_smoothing=0.1, reduction="none")
    return (each.sum(1) / (y != 3).sum(1)).sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_over_a_middle_dim_reads_the_logits_as_they_lie(dtype: Any) -> None:
    torch.manual_seed(0)
    z, y = torch.randn(4, 16, WORDS).to(dtype), torch.randint(0, WORDS, (4, 16))
    y[:, ::5] = 3
    step = Step(lambda z, y: words_in_the_middle(z * 2, y), [z.clone().requires_grad_(), y])
    loss, gradient = step(z, y)
    exact = z.double().requires_grad_()
    twice = (z * 2).double() + 2 * (exact - exact.detach())  # as the program rounds it
    want = words_in_the_middle(twice, y)
    want.backward()
    torch.testing.assert_close(loss.double(), want.double().detach(), rtol=1e-4, atol=1e-3)
    assert exact.grad is not None
    assert (gradient.double() - exact.grad).norm() < 1e-2 * exact.grad.norm()
    for peak, times in zip(step.peaks, (1, 2), strict=True):  # a copy, the gradient
        assert peak < times * LOGITS + 64 * COUNT * 8
    for graph in step.graphs:
        for kernel in schedule_graph(graph, 8).kernels():
            for stage in kernel.stages:
                for op in (*stage.loads(), *stage.stores()):
                    assert op.index is not None
                    assert not any(op.index.stride_of(f"r{n}") not in (0, 1, WORDS) for n in range(
                        len(stage.reduction_ranges))), op


def test_a_place_beyond_the_end_is_an_error() -> None:
    torch.manual_seed(0)
    h, w = torch.randn(COUNT, TERMS).bfloat16(), torch.randn(WORDS, TERMS).bfloat16()
    y = torch.randint(0, WORDS, (COUNT,))
    given = [h.requires_grad_(), w.requires_grad_(), w.detach(), y]
    step = Step(binary, given)
    with pytest.raises((IndexError, RuntimeError)):
        step(*(value.detach() for value in given[:3]), y + WORDS)


def test_the_gradient_of_picked_elements_is_elementwise() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x.log_softmax(0).gather(0, y) * x.sin().gather(0, y)).sum()

    x, y = torch.randn(50, 7, requires_grad=True), torch.randint(0, 50, (1, 7))
    step = Step(program, [x, y])
    (want,) = torch.autograd.grad(program(x, y), x)
    torch.testing.assert_close(step(x.detach(), y)[1], want)
    assert not any("scatter" in str(getattr(node, "target", "")) for node in step.graphs[1].nodes)


@pytest.mark.parametrize("program", [
    lambda x, y: x.gather(1, y).sum(), lambda x, y: x.gather(1, y[:3]).square().sum(),
    lambda x, y: x.gather(1, y.repeat(1, 2)).exp().sum(),
])  # fmt: skip
def test_gradients_of_gathers(program: Program) -> None:
    x, y = torch.randn(6, 50, requires_grad=True), torch.randint(0, 50, (6, 1))
    (want,) = torch.autograd.grad(program(x, y), x)
    torch.testing.assert_close(Step(program, [x, y])(x.detach(), y)[1], want)
