"""Forward hooks that compiled code registers: eager's values and hooks, and no graph for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter


def add_one(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out + 1


def twice(module: nn.Module, args: Any) -> torch.Tensor:
    return args[0] * 2




def features(m: Any, x: torch.Tensor) -> Any:
    kept = []
    handle = m[1].register_forward_hook(lambda module, args, out: kept.append(out * 2))
    y = m(x)
    handle.remove()
    return y, kept, m(x)


def of_all_layers(m: Any, x: torch.Tensor) -> Any:
    kept = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, out: torch.Tensor) -> None:
            kept[name] = args[0].sum() + out.sum()
        return hook

    handles = [layer.register_forward_hook(keep(name)) for name, layer in m.named_children()]
    y = m(x)
    for handle in handles:
        handle.remove()
    return y, kept


def before_and_behind(m: Any, x: torch.Tensor) -> Any:
    with m[0].register_forward_pre_hook(twice), m[0].register_forward_hook(add_one):
        y = m(x)
        with m[0].register_forward_pre_hook(lambda module, args: (args[0] + 3,)):
            y = y + m(x)
    return y + m(x)


def in_order(m: Any, x: torch.Tensor) -> Any:
    first = m[0].register_forward_hook(add_one)
    second = m[0].register_forward_hook(lambda module, args, out: out * args[0].sum())
    y = m(x)
    first.remove()
    y = y * m(x)
    second.remove()
    return y


def around_a_break(m: Any, x: torch.Tensor) -> Any:
    handle = m[0].register_forward_hook(lambda module, args, out: out * 3)
    dynamo.graph_break()
    y = m(x)
    handle.remove()
    return y + m(x)


def block_around_a_break(m: Any, x: torch.Tensor) -> Any:
    with m[0].register_forward_hook(add_one):
        dynamo.graph_break()
        y = m(x)
    return y + m(x)


def looked_at(m: Any, x: torch.Tensor) -> Any:
    handle = m[0].register_forward_hook(add_one)
    y = m(x) * len(m[0]._forward_hooks)
    handle.remove()
    return y


def with_options(m: Any, x: torch.Tensor) -> Any:
    handle = m[0].register_forward_hook(lambda module, args, kwargs, out: out * 2, with_kwargs=True)
    y = m(x)
    handle.remove()
    return y


def handed_out(m: Any, x: torch.Tensor) -> Any:
    return m(x), m[0].register_forward_hook(add_one), m(x)


ONE_GRAPH = [features, of_all_layers, before_and_behind, in_order, handed_out]


def observe(f: Callable[..., Any], call: Any, backward: bool) -> list[Any]:
    torch.manual_seed(3)
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    if backward:
        m[0].register_forward_hook(lambda module, args, out: out - 1)
    found = []
    for _ in range(4):
        x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
        result = call(m, x)
        flat, _ = torch.utils._pytree.tree_flatten(result)
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        sum(value.sum() for value in tensors).backward()
        found.append([*[t.detach() for t in tensors], x.grad, [len(layer._forward_hooks) for layer in m]])
        for handle in flat:
            if not isinstance(handle, torch.Tensor):
                handle.remove()
        found.append([len(layer._forward_hooks) for layer in m])
    return found


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("f", [*ONE_GRAPH, around_a_break, block_around_a_break, looked_at, with_options])
def test_hooks_registered_inside(f: Callable[..., Any], hooked: bool) -> None:
    counter = CompileCounter("eager")
    with dynamo.config.patch(suppress_errors=False):
        torch.testing.assert_close(
            observe(f, dynamo.compile(f, backend=counter), hooked), observe(f, f, hooked))
    if f in ONE_GRAPH and not (hooked and f is before_and_behind):
        assert counter.frame_count == 1
    assert counter.frame_count <= 8, "recompiled at each call"


class Breaking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        dynamo.graph_break()
        return y


def breaking(module: Any, *args: Any) -> Any:
    dynamo.graph_break()
    return args[-1] * 2 if len(args) > 1 else (args[0][0] * 3,)


@pytest.mark.parametrize("hook", [breaking, lambda module, *args: None])
def test_a_hook_around_a_break(hook: Any) -> None:
    def f(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        before, behind = m.register_forward_pre_hook(hook), m.register_forward_hook(hook)
        y = m(x)
        behind.remove()
        before.remove()
        with m.register_forward_hook(lambda module, args, out: out * 5):
            return y, m(x)

    m = Breaking()
    compiled = dynamo.compile(f, backend="eager")
    for _call in range(2):
        torch.testing.assert_close(compiled(m, torch.ones(2)), f(m, torch.ones(2)))


def test_a_hook_that_raises() -> None:
    def f(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def refuse(module: nn.Module, args: Any, out: torch.Tensor) -> None:
            raise KeyError("hook")

        handle = m.register_forward_hook(refuse)
        try:
            return m(x)
        except KeyError:
            return x
        finally:
            handle.remove()

    m, x = nn.Linear(3, 3), torch.rand(3)
    assert torch.equal(dynamo.compile(f, backend="eager")(m, x), x)
    assert not m._forward_hooks


class BreaksAsForwardIsRead(nn.Module):
    """Its call breaks the graph in the frame of `Module._call_impl` itself."""

    raises = True

    @property
    def forward(self) -> Any:  # type: ignore[override]
        dynamo.graph_break()
        return self.run

    def run(self, x: torch.Tensor) -> torch.Tensor:
        if self.raises:
            raise ValueError("of the program")
        return x * 2


@pytest.mark.parametrize("raises", [True, False])
def test_hooks_that_are_always_called_behind_a_break(raises: bool) -> None:
    seen: list[Any] = []
    module = BreaksAsForwardIsRead()
    module.raises = raises

    def note(module: nn.Module, args: Any, result: Any) -> None:
        dynamo.graph_break()
        seen.append(None if result is None else result.tolist())

    module.register_forward_hook(note, always_call=True)
    results: list[Any] = []
    for call in (module, dynamo.compile(module, backend="eager")):
        seen.clear()
        try:
            outcome = call(torch.ones(2)).tolist()
        except ValueError as error:
            outcome = str(error)
        results.append((outcome, list(seen)))
    assert results[0] == results[1] and len(results[0][1]) == 1


class AsksAsNewerTorchDoes(nn.Module):
    """With `Module._call_impl` of torch 2.15, which asks another function for the tracing state."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(inside)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        forward_call = self._slow_forward if torch._C._is_tracing() else self.forward
        if not (self._backward_hooks or self._backward_pre_hooks or self._forward_hooks or self._forward_pre_hooks):
            return forward_call(*args, **kwargs)
        return super()._call_impl(*args, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inside:
            x = module(x).sin()
        return x * 2


@pytest.mark.parametrize("hooked", [False, True])
def test_the_tracing_state_by_another_name(hooked: bool) -> None:
    model = AsksAsNewerTorchDoes(AsksAsNewerTorchDoes(), AsksAsNewerTorchDoes())
    if hooked:
        model.inside[0].register_forward_hook(lambda module, args, result: result + 1)
    x = torch.randn(3)
    assert torch.equal(dynamo.compile(model, backend="eager", fullgraph=True)(x), model(x))
