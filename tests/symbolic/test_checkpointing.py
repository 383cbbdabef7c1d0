"""Activation checkpointing in traced programs: one node, eager's gradients, nothing kept."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import dynamo
from dynamo.testing import CompileCounter

torch.manual_seed(0)
BLOCK = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
NORM = nn.BatchNorm1d(3).double()
COUNTED = {"calls": 0}


def module(x: torch.Tensor) -> Any:
    return checkpoint(BLOCK, x, use_reentrant=False) * 2


def stacked(x: torch.Tensor) -> Any:
    for _ in range(2):
        x = x + checkpoint(BLOCK, x, use_reentrant=False)
    return x


def nest_of_results(x: torch.Tensor) -> Any:
    def f(a: torch.Tensor, *, k: float) -> Any:
        b = a * k
        return {"x": BLOCK(b), "y": [b.sin(), a, 3]}

    found = checkpoint(f, x * 2, k=3.0, use_reentrant=False, preserve_rng_state=True)
    return found["x"] * found["y"][0] + found["y"][1] + found["y"][2]


def writes_buffers(x: torch.Tensor) -> Any:
    return checkpoint(NORM, x, use_reentrant=False), NORM.running_mean.clone()


def in_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = checkpoint(BLOCK, x, use_reentrant=False)
    return BLOCK(x) + y


def reentrant(x: torch.Tensor) -> Any:
    return checkpoint(BLOCK, x, use_reentrant=True) * 2


def reentrant_with_more(x: torch.Tensor) -> Any:
    scale = x.sum()

    def f(a: torch.Tensor, k: int, b: torch.Tensor) -> Any:
        y = BLOCK(a) * k
        y.add_(1)
        return y * b, a.argmax(), y.sin() * scale.detach()

    a, index, b = checkpoint(f, x * 2, 3, x.exp(), use_reentrant=True)
    return checkpoint(BLOCK, a + b, use_reentrant=True, preserve_rng_state=False) + index


def reentrant_in_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = checkpoint(BLOCK, x, use_reentrant=True)
    return x * y


def as_default(x: torch.Tensor) -> Any:
    def f(a: torch.Tensor, k: None, more: tuple[int, str]) -> Any:
        return BLOCK(a), 3, None, more

    y, factor, _, _ = checkpoint(f, x * 2, None, (1, "a"))
    return checkpoint(BLOCK, y * factor, use_reentrant=None, preserve_rng_state=False)


def nested(x: torch.Tensor) -> Any:
    def outer(a: torch.Tensor) -> Any:
        return checkpoint(BLOCK, a.sin()) * checkpoint(BLOCK, a, use_reentrant=False)

    return checkpoint(outer, x) + checkpoint(outer, x, use_reentrant=False)


def other_options(x: torch.Tensor) -> Any:
    y = checkpoint(BLOCK, x, use_reentrant=False, determinism_check="none", early_stop=False)
    return checkpoint(BLOCK, y, use_reentrant=False, determinism_check="default", debug=False)


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def make_contexts() -> Any:
    return create_selective_checkpoint_contexts(keep_products)


def selective(x: torch.Tensor) -> Any:
    y = checkpoint(BLOCK, x, use_reentrant=False, context_fn=make_contexts)
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    z = checkpoint(BLOCK, y.tanh(), use_reentrant=False, context_fn=contexts)
    return checkpoint(lambda a: (a @ a.t()).exp() @ a, z, use_reentrant=False,
                      context_fn=lambda: create_selective_checkpoint_contexts(keep_products))


def no_argument_requires_grad(x: torch.Tensor) -> Any:
    y = checkpoint(BLOCK, x.detach(), use_reentrant=True)
    return x * y


def reentrant_writes(x: torch.Tensor) -> Any:
    return checkpoint(NORM, x, use_reentrant=True) + x, NORM.running_mean.clone()


def reentrant_gives_argument_back(x: torch.Tensor) -> Any:
    a, b = checkpoint(lambda a: (a, BLOCK(a)), x * 1, use_reentrant=True)
    return a * b


def counts(x: torch.Tensor) -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        COUNTED["calls"] += 1
        return BLOCK(a)

    return checkpoint(f, x, use_reentrant=False)


def appends(x: torch.Tensor) -> Any:
    kept: list[torch.Tensor] = []

    def f(a: torch.Tensor) -> torch.Tensor:
        kept.append(a * 2)
        return BLOCK(a)

    y = checkpoint(f, x, use_reentrant=False)
    return y + kept[0] + len(kept)


def breaks_inside(x: torch.Tensor) -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break()
        return BLOCK(a).sin()

    return checkpoint(f, x, use_reentrant=False) + 1


def check(f: Callable[[torch.Tensor], Any], graphs: int | None) -> None:
    dynamo.reset()
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, fullgraph=graphs == 1)
    for call in range(3):
        results = []
        for run in (f, compiled):
            torch.manual_seed(call)
            BLOCK.zero_grad()
            NORM.reset_running_stats()
            COUNTED["calls"] = 0
            x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
            with warnings.catch_warnings(action="ignore"):
                found = run(x)
            flat = list(found) if isinstance(found, tuple) else [found]
            flat[0].square().sum().backward()
            results.append([*flat, x.grad, *(p.grad for p in BLOCK.parameters()),
                            NORM.running_mean, dict(COUNTED), torch.rand(1)])
        for want, got in zip(*results, strict=True):
            same = torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got
            assert same, (call, want, got)
    assert graphs is None or counter.frame_count == graphs


@pytest.mark.parametrize("f", [
    module, stacked, nest_of_results, writes_buffers, in_no_grad, reentrant, reentrant_with_more,
    reentrant_in_no_grad, selective, as_default, nested, other_options, no_argument_requires_grad,
])
def test_one_graph(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, 1)


@pytest.mark.parametrize("f", [
    counts, appends, breaks_inside, reentrant_writes, reentrant_gives_argument_back,
])
def test_any_graphs(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, None)


def test_what_torch_warns_of() -> None:
    """Without `use_reentrant`, and where no argument needs gradients."""
    compiled = dynamo.compile(lambda x: checkpoint(torch.sin, x), backend="eager", fullgraph=True)
    texts = []
    for run in (lambda x: checkpoint(torch.sin, x), compiled):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert not run(torch.rand(3)).requires_grad
        texts.append([(str(each.message), each.category) for each in told])
    assert texts[0] == texts[1] and len(texts[0]) == 2


def test_nothing_is_kept_for_backward() -> None:
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    compiled = dynamo.compile(module, backend="eager", fullgraph=True)
    for run in (compiled, compiled, BLOCK):
        sizes.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            run(x)
        assert (32 in sizes) is (run is BLOCK)  # the hidden layer


WIDE = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 3)).double()


def kept(reentrant: bool, context_fn: Any) -> Any:
    options = {} if context_fn is None else {"context_fn": context_fn}
    return lambda x: checkpoint(WIDE, x, use_reentrant=reentrant, **options) * 2


@pytest.mark.parametrize("f,times", [
    (lambda x: WIDE(x) * 2, 1), (kept(False, None), 0), (kept(True, None), 0), (kept(False, make_contexts), 1),
], ids=["plain", "checkpointed", "reentrant", "selective"])
def test_what_the_default_backend_keeps(f: Callable[[torch.Tensor], Any], times: int) -> None:
    """The hidden layer: its product where the policy says so, else only where nothing is said."""
    compiled = dynamo.compile(f, backend="inductor", fullgraph=True)
    results = []
    x = torch.rand(5, 3, dtype=torch.float64)
    for run in (f, compiled):
        WIDE.zero_grad()
        given = x.clone().requires_grad_()
        out = run(given)
        if run is compiled:
            assert sum(saved.numel() == 5 * 40 for saved in out.grad_fn.saved_tensors) == times
        out.square().sum().backward()
        results.append([out.detach(), given.grad, *(p.grad for p in WIDE.parameters())])
    torch.testing.assert_close(*results)


# -- compiled code inside of a checkpoint of the caller: its recomputation ends by an exception --------


class Net(nn.Module):
    """A module that keeps something of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        self.last = h.detach()
        return self.second(h)


class Broken(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        dynamo.graph_break()
        return self.second(h).sin()


def drop_forward(f: Any, x: torch.Tensor) -> Any:
    return checkpoint(f, x, use_reentrant=False)


def lambda_around(f: Any, x: torch.Tensor) -> Any:
    return checkpoint(lambda a: f(a) + f(a * 2), x, use_reentrant=False)


def nested(f: Any, x: torch.Tensor) -> Any:
    return checkpoint(lambda a: drop_forward(f, a).exp(), x, use_reentrant=False)


def without_early_stop(f: Any, x: torch.Tensor) -> Any:
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return drop_forward(f, x)


def backward_once(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[Any]:
    out.square().sum().backward()
    return [leaf.grad for leaf in leaves]


def backward_twice(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[Any]:
    out.sum().backward(retain_graph=True)
    return backward_once(out, leaves)


def grad_of_grad(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[Any]:
    (first,) = torch.autograd.grad(out.square().sum(), leaves[:1], create_graph=True)
    return [first, *torch.autograd.grad(first.square().sum(), leaves)]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("given", [Net, Broken])
@pytest.mark.parametrize("call", [drop_forward, lambda_around, nested, without_early_stop])
@pytest.mark.parametrize("backward", [backward_once, backward_twice, grad_of_grad])
def test_a_compiled_module_in_a_checkpoint(
    backend: str, given: type[Net], call: Callable[[Any, torch.Tensor], Any],
    backward: Callable[[torch.Tensor, list[torch.Tensor]], list[Any]],
) -> None:
    dynamo.reset()
    torch.manual_seed(0)
    net = given().double()
    compiled = dynamo.compile(net, backend=backend)
    for _ in range(3):
        values = torch.rand(3, 6, dtype=torch.float64)
        results = []
        for run in (net, compiled):
            net.zero_grad()
            x = values.clone().requires_grad_()
            out = call(run, x)
            kept = net.last  # what the recomputation keeps is not promised
            results.append([out.detach(), kept, *backward(out, [x, *net.parameters()])])
        torch.testing.assert_close(*results)
