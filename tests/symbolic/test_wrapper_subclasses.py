"""Traceable wrapper subclasses in compiled functions: one graph, eager's values and classes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import dynamo
from dynamo.testing import CompileCounter
from tests.wrapper_tensors import Scaled, assert_same

F = nn.functional
BACKENDS = ["eager", "inductor"]
torch.manual_seed(0)
WEIGHT, MATRIX = Scaled.quantize(torch.randn(8, 8)), torch.randn(8, 3)


def plain() -> torch.Tensor:
    return torch.randn(4, 8)


def two() -> TwoTensor:
    return TwoTensor(plain(), plain())


def scaled() -> Scaled:
    return Scaled.quantize(plain())


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Scaled:
        return Scaled.quantize(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


def write_inside(t: Any, x: torch.Tensor) -> Any:
    t.a.add_(x)
    return t + 1


def write_through_view(t: Any) -> Any:
    view = t.view(-1)
    view.mul_(2)
    return t + view.sum()


def make_and_take_apart(x: torch.Tensor) -> Any:
    made = Scaled.quantize(x)
    return made.plain() + 1, made, made.twice


def ask_class(t: Any) -> Any:
    made = t + 1
    known = isinstance(made, TwoTensor) and type(t) is TwoTensor and not isinstance(t, Scaled)
    return made if known and hasattr(t, "a") and not hasattr(t, "c") else t


def flatten(t: Any) -> Any:
    names, context = t.__tensor_flatten__()
    inner = {name: getattr(t, name) + 1 for name in names}
    return TwoTensor.__tensor_unflatten__(inner, context, t.shape, t.stride())


def fill(t: Any) -> Any:
    made = t.clone()
    made[0] = 0
    made.a.zero_()
    return t, made


def same_objects(x: torch.Tensor) -> Any:
    made = TwoTensor(x, x + 1)
    made.a.mul_(2)
    return made.a is x, made.a is made.b, made.detach().a is x, x * 1, made


def read_written_read(t: Any, x: torch.Tensor) -> Any:
    first = t.a * 1
    t.add_(x)
    second, inner = t.a * 1, t.b
    inner.mul_(2)
    return first, second, t * 1, t.b * 1


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Callable[[], Any], ...]]] = {
    "a weight": (lambda x, w: F.relu(F.linear(x, w)), (plain, lambda: Scaled.quantize(MATRIX.t()))),
    "of a closure": (lambda x: x @ WEIGHT, (plain,)),
    "made inside": (make_and_take_apart, (plain,)),
    "given back": (lambda s: (s, s.scale * 1, s.numbers), (scaled,)),
    "context": (lambda s: s.plain() if s.kind == "row" else s.plain() * 3, (scaled,)),
    "views": (lambda t: (t.view(8, 4).t(), t[0], t.reshape(-1)), (two,)),
    "written": (lambda t: t.add_(1) * 2, (two,)),
    "written through a view": (write_through_view, (two,)),
    "copied into": (lambda s, x: s.copy_(x).plain(), (scaled, plain)),
    "inner tensor written": (write_inside, (two, plain)),
    "nested": (lambda t: (t * 2, t.a.b + 1), (lambda: TwoTensor(two(), two()),)),
    "its class": (ask_class, (two,)),
    "arithmetic": (lambda a, b: (a + b, (a * b).sum(), torch.cat([a, b])), (two, two)),
    "an own operation": (lambda s: -s, (scaled,)),
    "filled": (fill, (two,)),
    "taken apart": (flatten, (two,)),
    "detached": (lambda t: (t.detach() + 1, t.shape, t.dtype), (two,)),
    "made of the same": (same_objects, (plain,)),
    "inner tensors read": (lambda s, x: (s.numbers.t() * s.scale, s @ x, s.numbers is s.numbers), (scaled, MATRIX.clone)),
    "read, written, read": (read_written_read, (two, plain)),
    "unread": (lambda t: (MATRIX + 1, t), (two,)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    f, makers = PROGRAMS[name]
    given = [make() for make in makers]
    mine = copy.deepcopy(given)
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(*mine), f(*given))
        assert_same(mine, given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    """Of a wrapper, whose gradient is one, and of a plain tensor behind a wrapper made inside."""

    def f(w: Any, x: torch.Tensor) -> torch.Tensor:
        return (TwoTensor(x, x * 2) @ w.t()).sum() * 2

    def gradient(call: Callable[..., Any]) -> Any:
        leaf = copy.deepcopy(w).requires_grad_()
        call(leaf, x).backward()
        return leaf.grad

    w, x = two(), plain()
    assert_same(gradient(dynamo.compile(f, backend=backend, fullgraph=True)), gradient(f))
    y = x.clone().requires_grad_()
    quantized = dynamo.compile(lambda x: Quantize.apply(x) @ MATRIX, backend=backend)
    (mine,) = torch.autograd.grad(quantized(y).sum(), y)
    assert_same(mine, MATRIX.sum(1).expand(4, 8).contiguous() * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_and_outputs_with_gradients(backend: str) -> None:
    model = nn.Linear(8, 8)
    for name in ("weight", "bias"):
        value = getattr(model, name).detach()
        setattr(model, name, nn.Parameter(TwoTensor(value.clone(), value.clone())))
    other = copy.deepcopy(model)
    compiled = dynamo.compile(other, backend=backend, fullgraph=True)
    x = two()
    for each in (model, compiled):
        for _ in range(2):
            result = each(x)
            (result * result).sum().backward()
    assert_same([p.grad for p in other.parameters()], [p.grad for p in model.parameters()])
    assert type(result) is TwoTensor and result.requires_grad


class Linear(torch.autograd.Function):
    """Both halves ask the `__torch_function__` of the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: Any, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ torch.sin(w).t() + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ torch.sin(w), grad.t() @ x, grad.sum(0)


class Asked(Scaled):
    """Linear layers have an autograd function of their own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return Linear.apply(*args)
        if func is torch.sin:
            return torch.cos(args[0].numbers)
        return super().__torch_function__(func, types, args, kwargs or {})


def with_two(value: torch.Tensor) -> TwoTensor:
    return TwoTensor(value, value * 2)


def as_it_is(value: torch.Tensor) -> torch.Tensor:
    return value


def train(wrap: Any, wrap_bias: Any, compiled: Callable[[Any], Any]) -> list[Any]:
    """The losses, gradients and weights of a few steps; the batch changes."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    for layer in layers:
        layer.weight = nn.Parameter(wrap(layer.weight.detach()))
        layer.bias = nn.Parameter(wrap_bias(layer.bias.detach()))
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    weights, call, seen = list(model.parameters()), compiled(model), []
    optimizer = torch.optim.SGD(weights, lr=0.01)
    for batch in (4, 4, 6):
        loss = (call(torch.randn(batch, 8)) ** 2).sum()
        loss.backward()
        seen += [loss.detach(), *(weight.grad.clone() for weight in weights)]
        optimizer.step()
    return [*seen, *(weight.detach() for weight in weights)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("wrap", "wrap_bias"), [
    (with_two, with_two), (with_two, as_it_is), (as_it_is, with_two),
    (lambda value: Asked(value, torch.tensor(1.0)), as_it_is),
])
def test_training(wrap: Any, wrap_bias: Any, backend: str) -> None:
    """A weight, or a plain one beside wrappers, gets a gradient of the class that eager gives."""
    found = train(wrap, wrap_bias, lambda model: dynamo.compile(
        model, backend=backend, fullgraph=True))
    assert_same(found, train(wrap, wrap_bias, as_it_is))


@pytest.mark.parametrize("backend", [*BACKENDS, "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("trains", "input_trains"), [(True, False), (False, True), (True, True)])
def test_batches_of_many_sizes(
    trains: bool, input_trains: bool, dynamic: bool | None, backend: str
) -> None:
    """One graph for all of them, and what it returns has sizes that are numbers."""
    layers = [nn.Linear(8, 8), nn.Linear(8, 4)]
    for layer in layers:
        for name, value in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(with_two(value.detach()), requires_grad=trains))
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    counter = CompileCounter(backend)
    compiled = dynamo.compile(model, backend=counter, dynamic=dynamic, fullgraph=True)
    for size in (5, 3, 7, 4, 1, 6):
        results = []
        for call in (compiled, model):
            torch.manual_seed(size)
            x = torch.randn(size, 8, requires_grad=input_trains)
            out = call(x)
            (out * out).sum().backward()
            leaves = [x, *model.parameters()]
            results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
            assert all(type(part) is int for part in (*out.shape, *out.stride()))
            model.zero_grad()
        assert_same(*results)
    assert counter.frame_count <= 3  # a batch of one has a graph of its own
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("backend", [*BACKENDS, "aot_eager"])
def test_returned_wrappers_of_many_sizes(backend: str) -> None:
    f = lambda x: (TwoTensor(x * 2, x + 1), TwoTensor(x.t(), x.t()))  # noqa: E731
    compiled = dynamo.compile(f, backend=backend, dynamic=True, fullgraph=True)
    for x in (torch.randn(3, 8), torch.randn(5, 6)):
        assert_same(compiled(x), f(x))
        for found, wanted in zip(compiled(x), f(x), strict=True):
            assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
            assert all(type(part) is int for part in (*found.shape, *found.stride()))


def test_training_in_pieces() -> None:
    """A gradient that is no wrapper, of a weight in a graph that is cut."""

    def f(x: torch.Tensor) -> Any:
        torch._assert_async((x == x).all())
        return F.linear(x.detach().requires_grad_(), weight, bias).relu().sum()

    def gradient(call: Callable[..., Any]) -> Any:
        weight.grad = bias.grad = None
        for _ in range(2):
            call(x).backward()
        return weight.grad, bias.grad

    x, bias = plain(), torch.randn(8, requires_grad=True)
    weight: Any = nn.Parameter(Asked(torch.randn(8, 8), torch.tensor(1.0)))
    assert_same(gradient(dynamo.compile(f, fullgraph=True)), gradient(f))


@dynamo.allow_in_graph
def allowed(x: torch.Tensor, w: Any) -> torch.Tensor:
    return x + torch.sin(w)


@pytest.mark.parametrize("backend", BACKENDS)
def test_allowed_code_asks_the_class(backend: str) -> None:
    x, w = torch.randn(8, 8), Asked(torch.randn(8, 8), torch.tensor(1.0))
    compiled = dynamo.compile(lambda x, w: allowed(x, w), backend=backend, fullgraph=True)
    assert_same(compiled(x, w), x + w.numbers.cos())


class Seen(torch.Tensor):
    """No wrapper: a graph has a plain tensor in its place."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("f", [
    lambda x, w: allowed(x, w), lambda x, w: Linear.apply(x, w, x)])
def test_code_that_would_see_another_class(f: Callable[..., Any]) -> None:
    given = torch.randn(8, 8), torch.randn(8, 8).as_subclass(Seen)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(dynamo.compile(f)(*given), f(*given))
    with pytest.raises(dynamo.exc.Unsupported, match="Seen as an argument of"):
        dynamo.compile(f, fullgraph=True)(*given)


@pytest.mark.parametrize("write", [False, True])
def test_a_plain_input_with_a_wrapper_as_gradient(write: bool) -> None:
    """Written, or with a view of it among the outputs, it runs as captured."""

    def f(x: torch.Tensor, t: Any) -> Any:
        result = x * t
        if write:
            with torch.no_grad():
                x.add_(1)
        return result, x.view(-1)

    def gradient(call: Callable[..., Any]) -> Any:
        leaf = x.clone().requires_grad_()
        result, view = call(leaf, t)
        (result.sum() + view.sum()).backward()
        return leaf.grad, leaf.detach(), view.detach()

    x, t = plain(), two()
    assert_same(gradient(dynamo.compile(f)), gradient(f))


class PlainGradient(Scaled):
    """Its gradient is a plain tensor."""


def test_gradient_of_another_class() -> None:
    """What the gradient is made of is known when backward was recorded."""

    def gradient(call: Callable[..., Any]) -> Any:
        leaf = PlainGradient(plain_numbers.clone(), scale.clone()).requires_grad_()
        call(leaf).sum().backward()
        return leaf.grad

    plain_numbers, scale = torch.randn(4, 8), torch.tensor(0.5)
    f = lambda w: (w * 2).sin()  # noqa: E731
    found, wanted = gradient(dynamo.compile(f, fullgraph=True)), gradient(f)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted)


def change_kind(s: Any) -> None:
    s.kind = "column"


def change_inner(s: Any) -> None:
    s.numbers = s.numbers.to(torch.int16)


@pytest.mark.parametrize("change", [change_kind, change_inner])
def test_changes_are_seen(change: Callable[[Any], None]) -> None:
    counter = CompileCounter()
    model = nn.Linear(8, 8, bias=False)
    model.weight = nn.Parameter(Scaled.quantize(model.weight.detach()), requires_grad=False)
    f = lambda x: (model(x), model.weight.kind)  # noqa: E731
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    x = plain()
    for _ in range(2):
        assert_same(compiled(x), f(x))
    assert counter.frame_count == 1
    change(model.weight)
    assert_same(compiled(x), f(x))
    assert counter.frame_count == 2


def test_another_class_is_another_graph() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda t: t * 2, backend=counter, fullgraph=True)
    for value in (two(), plain(), scaled(), two()):
        assert_same(compiled(value), value * 2)
    assert counter.frame_count == 3


def test_weights_that_need_no_gradient_enter_as_plain_tensors() -> None:
    seen: list[Any] = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        seen.extend(inputs)
        return gm.forward

    model = nn.Linear(8, 8, bias=False)
    model.weight = nn.Parameter(Scaled.quantize(model.weight.detach()), requires_grad=False)
    x = plain()
    assert_same(dynamo.compile(model, backend=backend)(x), model(x))
    assert {type(value) for value in seen} == {torch.Tensor}


def test_inner_tensors_that_are_read_are_inputs_of_the_graph() -> None:
    operations: list[Any] = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        operations.extend(node.target for node in gm.graph.nodes if node.op.startswith("call"))
        return gm.forward

    w, x = scaled(), MATRIX.clone()
    f = lambda w, x: w.numbers.to(w.scale.dtype) @ x  # noqa: E731
    assert_same(dynamo.compile(f, backend=backend)(w, x), f(w, x))
    assert operations == ["to", operator.matmul]


class Exchanging(Scaled):
    """Puts other tensors in the place of its own when it is written."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.copy_.default:
            args[0].numbers, args[0].scale = args[1].numbers + 1, args[1].scale * 2
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inner_tensors_that_a_dispatch_exchanges(backend: str) -> None:
    f = lambda s, other: (s.numbers * 1, s.copy_(other).plain(), s.numbers * 3)  # noqa: E731
    values, numbers = scaled(), scaled()
    found, wanted = [
        call(Exchanging(numbers.numbers, numbers.scale), Exchanging(values.numbers, values.scale))
        for call in (dynamo.compile(f, backend=backend), f)
    ]
    assert_same(found, wanted)


class Watching(Scaled):
    """Looks at values in its dispatch, which a graph can't."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0].plain() + (1 if args[0].scale.item() > 0 else 2)


def test_dispatch_that_looks_at_values() -> None:
    f = lambda w: w.sin() * 2  # noqa: E731
    w = Watching(torch.ones(3), torch.tensor(2.0))
    assert_same(dynamo.compile(f)(w), f(w))
    with pytest.raises(dynamo.exc.Unsupported, match="sin"):
        dynamo.compile(f, fullgraph=True)(w)
