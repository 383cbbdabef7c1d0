"""`backward` and `torch.autograd.grad` in the compiled function: one graph, and what eager leaves behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

import dynamo
from dynamo.testing import CompileCounter
from inductor import metrics

Step = Callable[[Tensor], Any]
Program = tuple[Step, list[Tensor]]
BACKENDS = ["eager", "aot_eager", "inductor"]
CALLS = 3


@pytest.fixture(autouse=True)
def errors_are_shown() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield


def plain(value: Any) -> Any:
    """Values, layouts and whether there is a history, as they are now."""
    def one(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        return item.detach().clone(), item.requires_grad, item.is_leaf

    return tree_map(one, value)


def observe(make: Callable[[], Program], compile_it: Callable[[Step], Step]) -> list[Any]:
    """What each call returns or raises, and what the leaves and their gradients are then."""
    torch.manual_seed(0)
    step, leaves = make()
    step = compile_it(step)
    seen: list[Any] = []
    before: list[Tensor | None] = [None] * len(leaves)
    for number in range(CALLS):
        torch.manual_seed(number)
        x = torch.randn(4, 6, dtype=torch.float64)
        try:
            result = step(x)
            seen.append(plain(result))
        except RuntimeError as error:
            result = None
            seen.append(str(error).partition(":")[0])
        grads = [leaf.grad for leaf in leaves]
        seen.append(plain([leaf.data for leaf in leaves]))
        seen.append(plain(grads))
        seen.append([None if grad is None else (grad.stride(), grad is old)
                     for grad, old in zip(grads, before, strict=True)])
        spans = [None if grad is None else grad.untyped_storage().data_ptr() for grad in grads]
        seen.append([a == b for a, b in itertools.combinations(spans, 2)])
        before = grads
        for item in result if isinstance(result, tuple) else (result,):
            if isinstance(item, Tensor) and item.requires_grad:
                seen.append(again(item, leaves))
    return seen


def again(result: Tensor, leaves: list[Tensor]) -> Any:
    """Gradients of what was returned, asked for outside."""
    try:
        found = torch.autograd.grad(result.sum(), leaves, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        return str(error)[:60]
    return plain(found)


def check(make: Callable[[], Program], backend: str, graphs: int | None = 1) -> None:
    counter = CompileCounter(backend)
    wanted = observe(make, lambda step: step)
    found = observe(make, lambda step: dynamo.compile(step, backend=counter))
    for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
        else:
            assert one == (pytest.approx(other) if isinstance(other, float) else other)
    if graphs is not None:
        assert len(counter.graphs) == graphs


def weight(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


PROGRAMS: dict[str, Callable[[], Program]] = {}
BREAKING: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """One graph for all calls."""
    PROGRAMS[make.__name__] = make
    return make


def breaking(make: Callable[[], Program]) -> Callable[[], Program]:
    """More graphs than one, or another one for a later call."""
    BREAKING[make.__name__] = make
    return make


def forget(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = None


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


# -- backward -----------------------------------------------------------------------------------


@program
def forgets_before() -> Program:
    model = network()

    def step(x: Tensor) -> Any:
        forget(model)
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step, [*model.parameters()]


@breaking
def accumulates() -> Program:
    model = network()

    def step(x: Tensor) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step, [*model.parameters()]


@program
def accumulates_inside() -> Program:
    model = network()

    def step(x: Tensor) -> Any:
        forget(model)
        for part in x.split(2):
            (model(part).square().mean() / 2).backward()
        return [p.grad * 2 for p in model.parameters()]

    return step, [*model.parameters()]


@program
def steps_twice() -> Program:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Tensor) -> Any:
        losses = []
        for part in x.split(2):
            optimizer.zero_grad()
            loss = model(part).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return step, [*model.parameters()]


@breaking
def some_are_not_reached() -> Program:
    used, unused, frozen = weight(6), weight(6), torch.ones(6, dtype=torch.float64)

    def step(x: Tensor) -> Any:
        unused * 2
        (x * used * frozen).sum().backward()
        return unused.grad is None, frozen.grad is None

    return step, [used, unused, frozen]


@program
def layouts() -> Program:
    last = torch.randn(2, 3, 2, 2, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    gaps = torch.randn(3, 12, dtype=torch.float64)[:, ::2].detach().requires_grad_()
    turned = torch.randn(6, 4, dtype=torch.float64).t().detach().requires_grad_()
    one, summed = weight(()), weight(4, 6)

    def step(x: Tensor) -> Any:
        for p in (last, gaps, turned, one, summed):
            p.grad = None
        loss = last.sum() + (x @ gaps.t()).sum() + (turned * x).sum() * one + summed.sum()
        loss.backward()
        return loss.detach()

    return step, [last, gaps, turned, one, summed]


@program
def one_gradient_for_two() -> Program:
    a, b, c = weight(4, 6), weight(4, 6), weight(2, 6)

    def step(x: Tensor) -> Any:
        a.grad = b.grad = c.grad = None
        ((a + b) * torch.cat([c, c * 2])).mul(x).sum().backward()
        return a.grad + b.grad

    return step, [a, b, c]


@program
def given_gradient() -> Program:
    a, b = weight(4, 6), weight(4, 6)

    def step(x: Tensor) -> Any:
        a.grad = b.grad = None
        given = x * 2
        (a + 0).backward(given)
        torch.autograd.backward([b * 2, (b * x).sum()], [given, None])
        given.add_(1)
        return given

    return step, [a, b]


@program
def a_leaf_itself() -> Program:
    a = weight(())

    def step(x: Tensor) -> Any:
        a.grad = None
        a.backward()
        return a.grad + x.sum()

    return step, [a]


@program
def chosen_inputs() -> Program:
    model = network()
    first, second = model[0].weight, model[2].weight

    def step(x: Tensor) -> Any:
        first.grad = second.grad = None
        model(x).sum().backward(inputs=[first, second])
        return first.grad.sum()

    return step, [*model.parameters()]


@program
def retained() -> Program:
    a = weight(6)

    def step(x: Tensor) -> Any:
        a.grad = None
        loss = (a * x).sin().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        return loss

    return step, [a]


@program
def returns_more_than_the_loss() -> Program:
    model, other = network(), weight(6)

    def step(x: Tensor) -> Any:
        forget(model)
        out = model(x)
        loss = out.exp().mean()
        loss.backward()
        return loss, out.view(-1), out, (other * x).sin(), out.detach()

    return step, [*model.parameters(), other]


@program
def in_other_modes() -> Program:
    model = network()

    def step(x: Tensor) -> Any:
        forget(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = x.float() @ model[0].weight.float().round().t()
        loss = hidden.double().sum() + x.sum()
        with torch.no_grad():
            loss.backward()
        return loss

    return step, [model[0].weight]


@program
def tied() -> Program:
    table, head = nn.Embedding(7, 6).double(), nn.Linear(6, 7, bias=False).double()
    head.weight = table.weight

    def step(x: Tensor) -> Any:
        table.weight.grad = None
        words = (x[:, 0].abs() * 3).long().clamp(max=6)
        F.cross_entropy(head(table(words)), words).backward()
        return head.weight.grad.sum()

    return step, [table.weight]


@program
def checkpointed() -> Program:
    model = network()

    def step(x: Tensor) -> Any:
        forget(model)
        loss = checkpoint(model, x, use_reentrant=False).square().sum()
        loss.backward()
        return loss.detach()

    return step, [*model.parameters()]


class Saves(torch.autograd.Function):
    """Its gradient is the very tensor that was saved."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(b)
        return (a * b).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.saved_tensors[0], None


@program
def function_that_gives_what_it_saved() -> Program:
    a = weight(4, 6)

    def step(x: Tensor) -> Any:
        a.grad = None
        Saves.apply(a, x).backward()
        a.grad.add_(1)
        return x * 1

    return step, [a]


@program
def batch_norm() -> Program:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.0)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).pow(3).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss, model[1].running_mean * 1

    return step, [*model.parameters()]


@breaking
def item_at_the_end() -> Program:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses: list[float] = []

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return [*losses]

    return step, [*model.parameters()]


# -- torch.autograd.grad -------------------------------------------------------------------------


@program
def of_weights() -> Program:
    model = network()
    weights = [*model.parameters()]

    def step(x: Tensor) -> Any:
        loss = model(x).square().sum()
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for p, g in zip(weights, grads, strict=True):
                p -= 0.1 * g
        return loss, grads

    return step, weights


@program
def of_values_inside() -> Program:
    a = weight(6)

    def step(x: Tensor) -> Any:
        hidden = (a * x).sin()
        part = hidden[0]
        out = (hidden * hidden).sum() + part.exp().sum()
        first, second = torch.autograd.grad(out, [hidden, part], retain_graph=True)
        third, none = torch.autograd.grad(out, [a, a * 2], allow_unused=True)
        return first, second, third, none

    return step, [a]


@program
def of_gradients() -> Program:
    a, b = weight(6), weight(6)

    def step(x: Tensor) -> Any:
        a.grad = b.grad = None
        out = (a * x).sin().sum() * b.sum()
        slope, none = torch.autograd.grad(out, [a, b], create_graph=True)
        (slope.norm() - 1).square().backward()
        result = slope.detach() * 2
        a.grad, b.grad = a.grad * 2, None
        return result, torch.autograd.grad((a ** 3).sum(), a, create_graph=True)[0]

    return step, [a, b]


@program
def with_options() -> Program:
    a, b = weight(6), weight(6)

    def step(x: Tensor) -> Any:
        out = a * x
        return torch.autograd.grad([out, a.sum()], [a, b], [x, None], materialize_grads=True)

    return step, [a, b]


# -- what ends the graph ------------------------------------------------------------------------


@breaking
def hook_on_a_leaf() -> Program:
    a = weight(6)
    a.register_hook(lambda g: g * 3)

    def step(x: Tensor) -> Any:
        (a * x).sum().backward()
        return torch.autograd.grad((a * x).sin().sum(), a)

    return step, [a]


@breaking
def hook_that_comes_later() -> Program:
    a, calls = weight(6), []

    def run(x: Tensor) -> Any:
        (a * x).sum().backward()
        return x * 2

    def step(x: Tensor) -> Any:
        found = run(x)
        calls.append(1)
        if len(calls) == 2:
            a.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
        return found

    return step, [a]


@breaking
def hooks_inside() -> Program:
    a, model = weight(6), network()
    model[2].register_full_backward_hook(lambda m, inner, outer: (inner[0] * 2,))

    def step(x: Tensor) -> Any:
        a.grad = None
        t = a * x
        t.register_hook(lambda g: g * 2)
        t.sum().backward()
        model(x).sum().backward()
        return a.grad.sum()

    return step, [a, *model.parameters()]


@breaking
def retained_inside() -> Program:
    a = weight(6)

    def step(x: Tensor) -> Any:
        t = a * x
        t.retain_grad()
        t.sin().sum().backward()
        return t.grad * 2

    return step, [a]


@breaking
def no_gradient() -> Program:
    return (lambda x: x.sum().backward()), [weight(2)]


@breaking
def no_number() -> Program:
    a = weight(6)
    return (lambda x: (a * x).backward()), [a]


@breaking
def wrong_shape() -> Program:
    a = weight(6)
    return (lambda x: torch.autograd.grad(a * x, a, x[0])), [a]


@breaking
def not_used() -> Program:
    a, b = weight(6), weight(6)
    return (lambda x: torch.autograd.grad((a * x).sum(), [a, b])), [a, b]


@breaking
def freed() -> Program:
    a = weight(6)

    def step(x: Tensor) -> Any:
        loss = (a * x).sin().sum()
        loss.backward()
        loss.backward()

    return step, [a]


@breaking
def computed_before() -> Program:
    a = weight(6)

    def run(t: Tensor, x: Tensor) -> Any:
        (t * x).sum().backward()
        return t.sin()

    return (lambda x: run(a * 2, x)), [a]


@breaking
def gradient_with_a_history() -> Program:
    a, b = weight(6), weight(6)

    def step(x: Tensor) -> Any:
        a.grad = b * 2
        (a * x).sum().backward()
        return a.grad.sum()

    return step, [a, b]


@breaking
def leaf_made_inside() -> Program:
    a = weight(6)

    def step(x: Tensor) -> Any:
        a.grad = None
        between = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((between * a).sin().sum(), between, create_graph=True)
        slope.square().sum().backward()
        return between.grad, slope.detach()

    return step, [a]


def function_that_reads() -> Program:
    a, state = weight(6), [2.0]

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * state[0]

    def step(x: Tensor) -> Any:
        t = Reads.apply(a * x)
        state[0] += 1.0
        t.sum().backward()
        return x * 2

    return step, [a]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    check(PROGRAMS[name], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BREAKING)
def test_as_eager(name: str, backend: str) -> None:
    check(BREAKING[name], backend, None)


def test_function_that_reads_what_was_changed() -> None:
    check(function_that_reads, "eager", None)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_rates_and_sizes_that_change(kind: type[torch.optim.Optimizer], twice: bool) -> None:
    """What comes before the optimizer is compiled for all of its rates, and all sizes."""
    outcomes = []
    for compile_it in (lambda step: step, dynamo.compile):
        torch.manual_seed(0)
        model = network()
        optimizer = kind(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: Tensor, model: nn.Module = model, optimizer: Any = optimizer) -> list[Tensor]:
            losses = []
            for batch in (x, x + 1) if twice else (x,):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss)
            return losses

        compiled, before = compile_it(step), metrics.snapshot()["sizes_compiled"]
        found = []
        for number in range(8):
            found += compiled(torch.ones(3 + number, 6, dtype=torch.float64))
            if number > 2:
                schedule.step()
        outcomes.append([plain(found), plain([*model.parameters()]), plain([p.grad for p in model.parameters()])])
    for one, other in zip(*map(tree_leaves, outcomes), strict=True):
        assert torch.allclose(one, other) if isinstance(one, Tensor) else one == other
    assert metrics.snapshot()["sizes_compiled"] - before <= 4 * (1 + twice)  # the optimizer, by its rates
