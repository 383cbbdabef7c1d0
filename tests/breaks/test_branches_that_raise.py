"""A branch on a tensor of which one side raises stays in the graph; where it is taken, the program is eager's.

PYTEST_DONT_REWRITE: the texts of the assertions are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.utils._pytree import tree_flatten

import dynamo
from dynamo.base.errors import Unsupported

Program = Callable[[Tensor, list[Any]], Any]


def asserts(x: Tensor, log: list[Any]) -> Any:
    log.append("begins")
    y = x * 2
    assert (y > -3).all(), f"too small: {y.min():.3f}"
    log.append(y.sum())
    if torch.isnan(y).any():
        raise ValueError("not a number", y.shape)
    return y + 1


def checks(x: Tensor, log: list[Any]) -> Any:
    torch._check_tensor_all(x < 9)
    y = x * 2
    log.append("checked")
    torch._check_tensor_all_with(ValueError, y > -3, lambda: f"too small in {y.shape}")
    torch._check_tensor_all(y.sum() > -99, lambda: "never")
    return y + 1


def a_written_test(x: Tensor, log: list[Any]) -> Any:
    fine = (x > -1.5).all()
    if not fine:
        raise ValueError("too small")
    fine.fill_(False)
    if fine:
        raise KeyError("it was written to")
    return fine, x + 1


def catches(x: Tensor, log: list[Any]) -> Any:
    try:
        if (x < -1.5).any():
            raise ValueError(f"{x.min():.2f}")
        log.append(1)
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("ends")
    return x.sin()


def draws(x: Tensor, log: list[Any]) -> Any:
    noise = torch.randn_like(x)
    assert not (x < -1.5).any(), f"{noise.sum():.4f}"
    log.append(torch.rand(2))
    return x * noise


def indexes(x: Tensor, log: list[Any]) -> Any:
    at = x.round().long()
    assert (at >= -1).all(), "no index"
    return torch.arange(2.0).gather(0, at.clamp(max=0) + 1)


def judges(x: Tensor, log: list[Any]) -> Any:
    latent = distributions.Normal(x, (x + 2).log())
    z = latent.rsample()
    choice = distributions.Categorical(logits=z)
    action = choice.sample()
    divergence = distributions.kl_divergence(latent, distributions.Normal(torch.zeros_like(x), 1.0))
    log.append("judged")
    return choice.log_prob(action) + choice.entropy(), divergence.sum()


class Block:
    """A context that tells how it is left; it may swallow the error."""

    def __init__(self, log: list[Any], swallows: bool) -> None:
        self.log, self.swallows = log, swallows

    def __enter__(self) -> Block:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(("exit", kind and kind.__name__, error and error.args))
        return self.swallows


def leaves_blocks(x: Tensor, log: list[Any]) -> Any:
    with Block(log, True), Block(log, False):
        if (x < -1.5).any():
            raise KeyError("swallowed")
        log.append("inside")
    return x + 1


def chains(x: Tensor, log: list[Any]) -> Any:
    try:
        try:
            assert (x > -1.5).all()
        finally:
            log.append("cleanup")
            if x.min() < -3:
                raise KeyError("in the cleanup")
    except KeyError as error:
        error.add_note("seen")
        return error.args, str(error.__context__), error.__notes__
    return x.cos()


def from_a_generator(x: Tensor, log: list[Any]) -> Any:
    def parts() -> Any:
        for i in range(3):
            y = x * i
            if (y < -1.5).any():
                raise ValueError(i)
            log.append(i)
            yield y

    return sum(parts())


def in_a_loop(x: Tensor, log: list[Any]) -> Any:
    kept = []
    for i in range(3):
        try:
            if (x * i < -1.5).any():
                raise IndexError(i)
            kept.append(i)
        except IndexError as error:
            kept.append(error.args)
            continue
        finally:
            log.append(i)
    return kept, x.sin()


def takes_items(x: Tensor, log: list[Any]) -> Any:
    log.append(iter([1, 2, 3]))
    items = log.pop()
    next(items)
    if x.min() < -1.5:
        raise ValueError(next(items))
    return list(items), x + 1


PROGRAMS: list[Program] = [
    asserts, checks, a_written_test, catches, draws, indexes, judges, leaves_blocks, chains, from_a_generator,
    in_a_loop, takes_items,
]
GOOD, BAD = torch.rand(4, generator=torch.Generator().manual_seed(1)) + 0.1, torch.tensor([0.5, -2.0, 1.0, -0.2])


def outcome(f: Program, x: Tensor) -> tuple[Any, ...]:
    torch.manual_seed(5)
    log: list[Any] = []
    try:
        result = f(x.clone(), log)
    except Exception as error:
        result = type(error), error.args
    return result, log, torch.get_rng_state()


def assert_same(got: Any, want: Any) -> None:
    """Tensors up to rounding, all else equal."""
    left, right = tree_flatten(got), tree_flatten(want)
    assert left[1] == right[1]
    for a, b in zip(left[0], right[0], strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Program, backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for x in (GOOD, BAD, GOOD + 0.3, BAD * 2):
        want, got = outcome(program, x), outcome(compiled, x)
        assert_same(got, want)


def test_a_check_that_is_caught_or_refused() -> None:
    def f(x: Tensor, log: list[Any]) -> Any:
        try:
            torch._check_tensor_all_with(KeyError, x > 0)
            log.append("fine")
        except KeyError as error:
            log.append(str(error))
        if log[-1] == "fine":
            torch._check_tensor_all(x * 2)
        return x + 1

    compiled = dynamo.compile(f, backend="eager")
    for x in (GOOD, BAD, GOOD):
        assert_same(outcome(compiled, x), outcome(f, x))


def test_what_was_written_before_is_not_written_twice() -> None:
    def f(x: Tensor, log: list[Any]) -> Any:
        x.add_(1)
        assert (x > 0).all(), f"{x.min():.2f}"
        log.append(x.sum())
        return x * 2

    graphs = dynamo.explain(f)(GOOD.clone(), [])
    assert graphs.graph_count == 2  # the write comes first: it can't happen twice
    for x in (GOOD, BAD):
        a, b = x.clone(), x.clone()
        want, got = outcome(lambda _, log, a=a: f(a, log), x), outcome(lambda _, log, b=b: dynamo.compile(f)(b, log), x)
        assert_same((got, b), (want, a))


def test_gradients() -> None:
    model = nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        y = model(x).relu()
        if not torch.isfinite(y).all():
            raise ValueError("overflow")
        return y.sum()

    compiled = dynamo.compile(f, fullgraph=True)
    for scale in (1.0, 2.0):
        x = torch.randn(3, 4) * scale
        want = torch.autograd.grad(f(x), [*model.parameters()])
        torch.testing.assert_close(torch.autograd.grad(compiled(x), [*model.parameters()]), want)
    with pytest.raises(ValueError, match="overflow"):
        compiled(torch.full((3, 4), torch.inf))


def test_two_ways_that_go_on_break() -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(Unsupported):
        dynamo.compile(f, backend="eager", fullgraph=True)(GOOD)


def test_new_pairs_of_distributions() -> None:
    class Own(distributions.Normal):
        pass

    def f(x: Tensor) -> Tensor:
        return distributions.kl_divergence(Own(x, 1.0), distributions.Normal(x, 2.0)).sum()

    compiled = dynamo.compile(f, backend="eager")
    assert torch.equal(compiled(GOOD), f(GOOD))
    registry = dict(distributions.kl._KL_REGISTRY)
    try:
        distributions.register_kl(Own, distributions.Normal)(lambda p, q: p.loc * 3)
        assert torch.equal(compiled(GOOD), f(GOOD))
        assert torch.equal(f(GOOD), (GOOD * 3).sum())
    finally:
        distributions.kl._KL_REGISTRY.clear()
        distributions.kl._KL_REGISTRY.update(registry)
        distributions.kl._KL_MEMOIZE.clear()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_zero_grad_is_part_of_a_graph(kind: type[torch.optim.Optimizer]) -> None:
    outcomes = []
    for compiled in (False, True):
        torch.manual_seed(2)
        model = nn.Linear(4, 2)
        optimizer = kind(model.parameters(), lr=0.1)

        def step(x: Tensor, model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            forgotten = model.weight.grad is None
            loss.backward()
            optimizer.step()
            return loss.detach() + forgotten

        losses = [(dynamo.compile(step, backend="eager") if compiled else step)(x) for x in torch.ones(3, 2, 4)]
        grad = model.weight.grad
        assert grad is not None
        outcomes.append((losses, grad.clone(), model.weight.detach().clone()))
        if compiled:
            assert not dynamo.explain(step)(torch.ones(2, 4)).breaks
    assert_same(outcomes[1], outcomes[0])
