"""Hooks on gradients, leaves made inside, retained gradients: one graph, and eager's gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter

LEAF = torch.rand(3, dtype=torch.float64, requires_grad=True)
SEEN: list[Any] = []
KEPT: list[Any] = []
FROZEN = nn.Linear(3, 3).double()
torch.manual_seed(0)
HOOKED = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
HOOKED[1].register_full_backward_hook(lambda m, inner, outer: (SEEN.append(outer), (inner[0] * 2,))[1])
HOOKED[2].register_full_backward_pre_hook(lambda m, outer: (outer[0] * 3,))
HOOKED.register_full_backward_hook(lambda m, inner, outer: SEEN.append((inner, outer)))


def on_intermediate(x: torch.Tensor) -> Any:
    t = x.sin() * LEAF
    s = t.cos()
    t.register_hook(lambda g: g * s)
    t.register_hook(lambda g: SEEN.append(g.sum()))
    return t * t


def on_input(x: torch.Tensor) -> Any:
    x.register_hook(lambda g: g * 5)
    LEAF.register_hook(lambda g: SEEN.append(g.sum()))
    return x * LEAF


def on_view_and_part(x: torch.Tensor) -> Any:
    t = (x * LEAF)[0]
    a, b = (t * 2).split([1, 2])
    a.register_hook(lambda g: g * 3)
    t.register_hook(lambda g: g + 1)
    return a.sum() * b


def after_a_write(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.mul_(2).register_hook(lambda g: g * 3)
    return t.sin()


def used_before(x: torch.Tensor) -> Any:
    t = x * LEAF
    s = t * 1
    t.mul_(2)
    u = t * 4
    t[0].mul_(3)
    v = t * 5
    t.register_hook(lambda g: g * 3)
    return u + v + t + s


def late_cell(x: torch.Tensor) -> Any:
    t = x * LEAF
    factor = 1.0
    t.register_hook(lambda g: g * factor)
    factor = 7.0
    return t.sin()


def removed(x: torch.Tensor) -> Any:
    t = x * LEAF
    first = t.register_hook(lambda g: g * 3)
    with t.register_hook(lambda g: g * 5):
        u = t.exp()
    first.remove()
    return u, first


def handed_out(x: torch.Tensor) -> Any:
    t = x * LEAF
    KEPT[:] = [t.register_hook(lambda g: g * 3), t.register_hook(lambda g: g * 5)]
    return t.exp(), t


def post_accumulate(x: torch.Tensor) -> Any:
    LEAF.register_post_accumulate_grad_hook(lambda p: SEEN.append(p.grad.sum()))
    return x * LEAF


def retained(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.retain_grad()
    LEAF.retain_grad()
    return t.sin(), t


def leaf_inside(x: torch.Tensor) -> Any:
    t = x.detach() * 2
    t.requires_grad_()
    u = torch.zeros(3, dtype=t.dtype)
    u.requires_grad = True
    return (t.sin() * u + t) * LEAF, t, u, t.is_leaf


def frozen(x: torch.Tensor) -> Any:
    FROZEN.requires_grad_(False)
    y = FROZEN(x * LEAF)
    FROZEN.requires_grad_(True)
    return y.tanh(), FROZEN.weight.requires_grad


def in_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        t = x * LEAF
    for register in (t.register_hook, t.register_post_accumulate_grad_hook):
        try:
            register(lambda g: g)
        except RuntimeError as error:
            SEEN.append(str(error))
    try:
        t.retain_grad()
    except RuntimeError as error:
        SEEN.append(str(error))
    try:
        (x * LEAF).register_post_accumulate_grad_hook(lambda g: g)
    except RuntimeError as error:
        SEEN.append(str(error))
    return t * LEAF


def history_is_there(x: torch.Tensor) -> Any:
    return x * LEAF if (x * LEAF).grad_fn is not None else x


def module_hooks(x: torch.Tensor) -> Any:
    return HOOKED(x * LEAF)


def module_hooks_without_gradient_of_input(x: torch.Tensor) -> Any:
    return HOOKED(x.detach()) * LEAF


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, most: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-most, most)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.cos(), None


def function_behind_a_hook(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.register_hook(lambda g: g * 3)
    return Clamped.apply(t, 0.5).sin() + t


ONE_GRAPH = [
    on_intermediate, on_input, on_view_and_part, after_a_write, used_before, late_cell, removed, post_accumulate,
    handed_out, retained, leaf_inside, frozen, in_no_grad, history_is_there, module_hooks,
    module_hooks_without_gradient_of_input, function_behind_a_hook,
]


def changed_later(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.register_hook(lambda g: g * 3)
    t.mul_(2)
    return t.sin()


def changed_through_its_base(x: torch.Tensor) -> Any:
    t = x * LEAF
    t[0].register_hook(lambda g: g * 3)
    v = t[0]
    v.register_hook(lambda g: g * 3)
    t.exp_()
    return v + t


def detached_later(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.register_hook(lambda g: g * 3)
    u = t + 1
    t.detach_()
    return u + t


def leaf_no_more(x: torch.Tensor) -> Any:
    t = x.detach() * 2
    t.requires_grad_()
    t.register_hook(lambda g: g * 3)
    u = t.sin()
    t.requires_grad_(False)
    return u * LEAF + t


def no_leaf(x: torch.Tensor) -> Any:
    try:
        (x * LEAF).requires_grad_(False)
    except RuntimeError as error:
        SEEN.append(str(error))
    return x * LEAF


def removed_behind_a_break(x: torch.Tensor) -> Any:
    t = x * LEAF
    handle = t.register_hook(lambda g: g * 3)
    dynamo.graph_break()
    handle.remove()
    return t.sin()


def forward_hooks_too(x: torch.Tensor) -> Any:
    handle = FROZEN.register_forward_hook(lambda m, args, out: out * 2)
    t = FROZEN(x * LEAF)
    t.register_hook(lambda g: g * 3)
    handle.remove()
    return FROZEN(t)


def inside_of_backward(x: torch.Tensor) -> Any:
    t = x * LEAF
    t.register_hook(lambda g: g * 3)
    return torch.autograd.grad(t.sin().sum(), LEAF)[0] * LEAF


ANY_GRAPHS = [changed_later, changed_through_its_base, detached_later, leaf_no_more, no_leaf,
              removed_behind_a_break, forward_hooks_too, inside_of_backward]


def observe(f: Callable[..., Any], seed: int) -> Any:
    torch.manual_seed(seed)
    SEEN.clear()
    KEPT.clear()
    LEAF.grad = LEAF._backward_hooks = LEAF._post_accumulate_grad_hooks = None
    FROZEN.zero_grad()
    HOOKED.zero_grad()
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    found = f(x)
    flat = list(found) if isinstance(found, tuple) else [found]
    for handle in KEPT[:1]:
        handle.remove()
    with warnings.catch_warnings(action="ignore"):
        flat[0].square().sum().backward()
    grads = [item.grad for item in flat[1:] if isinstance(item, torch.Tensor) and (item.is_leaf or item.retains_grad)]
    plain = [item for item in flat if not isinstance(item, torch.utils.hooks.RemovableHandle)]
    parameters = [p.grad for m in (FROZEN, HOOKED) for p in m.parameters()]
    return [*plain, x.grad, LEAF.grad, *grads, *parameters,
            [item for item in SEEN if not isinstance(item, str)],
            [item for item in SEEN if isinstance(item, str)]]


def check(f: Callable[..., Any], backend: str, fullgraph: bool) -> CompileCounter:
    dynamo.reset()
    counter = CompileCounter(backend)
    compiled = dynamo.compile(f, backend=counter, fullgraph=fullgraph)
    with dynamo.config.patch(suppress_errors=False):
        for seed in range(3):
            *found, texts = observe(compiled, seed)
            *wanted, texts_of_eager = observe(f, seed)
            torch.testing.assert_close(found, wanted)
            assert texts == texts_of_eager
    return counter


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(f: Callable[..., Any], backend: str) -> None:
    assert check(f, backend, fullgraph=True).frame_count == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", ANY_GRAPHS)
def test_any_graphs(f: Callable[..., Any], backend: str) -> None:
    check(f, backend, fullgraph=False)


def hook_then_write(a: torch.Tensor, b: torch.Tensor) -> Any:
    b.register_hook(lambda g: g * 2)
    a.mul_(3)
    return a * 1, b


def retain_then_write(a: torch.Tensor, b: torch.Tensor) -> Any:
    b.retain_grad()
    a[0].mul_(3)
    return a * 1, b


def hook_on_a_view_then_write(a: torch.Tensor, b: torch.Tensor) -> Any:
    view = b[1:]
    view.register_hook(lambda g: g * 2)
    a.mul_(3)
    return a * 1, b, view


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [hook_then_write, retain_then_write, hook_on_a_view_then_write])
def test_a_hook_on_an_argument_whose_memory_another_argument_writes(f: Callable[..., Any], backend: str) -> None:
    def run(function: Callable[..., Any], share: bool) -> Any:
        leaf = torch.arange(9.0, dtype=torch.float64).view(3, 3).requires_grad_()
        base = leaf * 2
        a, b = base[:], base.t()
        a, *rest = function(a, b if share else b * 1)
        if share:  # their history goes on from the write
            rest = [item.grad_fn is not None and item * 5 for item in rest]
        (a * a).sum().backward(retain_graph=True)
        sum((item * item).sum() for item in rest).backward()
        return a, rest, leaf.grad

    compiled = dynamo.compile(f, backend=backend)
    for share in (True, False, True):
        torch.testing.assert_close(run(compiled, share), run(f, share))


def same_nodes(x: torch.Tensor) -> Any:
    t = x * LEAF
    u = t[0]
    a, b = t.unbind(0)
    before = t.detach().clone().grad_fn
    node = u.grad_fn
    found = [t.grad_fn is t.grad_fn, u.grad_fn is u.grad_fn, a.grad_fn is b.grad_fn, u.grad_fn is t.grad_fn, before is t.grad_fn,
             node is u.grad_fn, t.grad_fn is not t.grad_fn]
    t = t * 1
    node = t.grad_fn
    t.mul_(2)
    return t, [*found, node is t.grad_fn]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_which_node_a_grad_fn_is(backend: str) -> None:
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    assert dynamo.compile(same_nodes, backend=backend, fullgraph=True)(x)[1] == same_nodes(x)[1]


def test_around_a_watched_tensor_is_compiled() -> None:
    dynamo.reset()
    check(on_intermediate, "inductor", fullgraph=True)
    assert not dynamo.counters["not_compiled"]


def test_a_recording_backend_refuses() -> None:
    def recording(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with Recorder():
            return module.forward(*inputs)

    with pytest.raises(dynamo.exc.BackendError, match="can't be recorded"):
        dynamo.compile(on_intermediate, backend=recording)(torch.rand(2, 3, dtype=torch.float64))


SAVED_RESULTS: dict[str, Any] = {
    "tanh": torch.tanh, "exp": torch.exp, "sqrt": lambda t: (t * t + 1).sqrt(), "prod": lambda t: t.prod(1),
    "softmax": lambda t: t.softmax(-1), "in_place": lambda t: (t * 1).tanh_(), "sin": torch.sin,
    "inverse": lambda t: torch.linalg.inv(t @ t.mT + 1 + torch.eye(4).double()),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", SAVED_RESULTS)
def test_second_derivatives_pass_hooks_on_results_that_autograd_keeps(name: str, inside: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        value = SAVED_RESULTS[name](x * w)
        if not inside:
            return value
        value.register_hook(lambda grad: grad.clamp(-1, 1) * 3)
        return value * 2 + value.tanh()

    def run(call: Any, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        out = call(x, w)
        if not inside:
            out.register_hook(lambda grad: grad * 3)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return [out.detach(), grad.detach(), *torch.autograd.grad(grad.square().sum() + out.sum(), [x, w])]

    given = [torch.rand(4, 4).double() + 0.5 for _ in range(2)]
    torch.testing.assert_close(run(dynamo.compile(program), *given), run(program, *given))


def one_of_two_results(x: torch.Tensor, seen: list[float]) -> tuple[torch.Tensor, ...]:
    first = x * 2
    second = first.sin()
    second.register_hook(lambda g: seen.append(float(g.sum())))
    return first, second, second * 2


def hook_on_what_nothing_uses(x: torch.Tensor, seen: list[float]) -> tuple[torch.Tensor, ...]:
    x.sin().register_hook(lambda g: seen.append(float(g.sum())))
    return x * 2, x.cos(), x * 3


def hook_that_scales(x: torch.Tensor, seen: list[float]) -> tuple[torch.Tensor, ...]:
    second = x.sin()
    second.register_hook(lambda g: g * g.sum())
    return x * 2, second, x.cos() * second.detach()


def written_argument(x: torch.Tensor, seen: list[float]) -> tuple[torch.Tensor, ...]:
    y = x * 1
    y.mul_(3)
    y.register_hook(lambda g: seen.append(float(g.sum())))
    return x * 2, y, x.cos()


def part_of_several(x: torch.Tensor, seen: list[Any]) -> tuple[torch.Tensor, ...]:
    first, second = x.chunk(2)
    first.register_hook(lambda g: seen.append(None if g is None else float(g.sum())))
    return second, first, x * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("program", [
    one_of_two_results, hook_on_what_nothing_uses, hook_that_scales, written_argument,
    part_of_several])
def test_a_result_without_a_gradient_tells_its_hook_nothing(
    program: Callable[..., Any], which: int, backend: str
) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    outcomes = []
    for f in (program, compiled):
        x = torch.arange(1.0, 5.0, requires_grad=True)
        seen: list[Any] = []
        f(x, seen)[which].sum().backward()
        outcomes.append((x.grad, seen))
    torch.testing.assert_close(outcomes[1], outcomes[0])
