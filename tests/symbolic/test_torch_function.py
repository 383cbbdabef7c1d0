"""`__torch_function__` of classes, objects and modes: asked as in eager, in one graph.

Each program runs twice beside eager: results, their classes and attributes, what was written into
the arguments, and what the program's own functions have noted must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import dynamo

NOTES: list[Any] = []
NAMES = {"by": 2}


class Plain(torch.Tensor):
    pass


class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        NOTES.append((func.__name__, [kind.__name__ for kind in types], len(args), kwargs))
        return super().__torch_function__(func, types, args, kwargs)


class Below(Noted):
    @property
    def twice(self) -> Any:
        return self * 2


class Pair(torch.Tensor):
    """A wrapper with a function of its own."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls: Any, a: Any, b: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = [
            func(*pytree.tree_map_only(Pair, lambda pair, part=part: getattr(pair, part), args),
                 **kwargs) for part in "ab"]
        return return_and_correct_aliasing(func, args, kwargs, cls(*parts))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        NOTES.append(func.__name__)
        if func is torch.Tensor.div:
            return args[0] * 3
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Quiet(Pair):
    """A wrapper that no function asks."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Quiet(inner["a"], inner["b"])


class Table(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ANSWERS:
            return ANSWERS[func](*args, **(kwargs or {}))
        if func == torch.Tensor.ndim.__get__:
            return 77
        if func.__name__ == "tanh":
            return NotImplemented
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Table):
            result.tag = getattr(args[0], "tag", None)
        return result


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        NOTES.append(func.__name__)
        if func is torch.Tensor.sub:
            raise TypeError("swallowed")
        return NotImplemented


class Own(torch.Tensor):
    """Operators of its own; no function asks it."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __add__(self, other: Any) -> Any:
        NOTES.append("add")
        return torch.Tensor.__add__(self, other) * 10

    def __radd__(self, other: Any) -> Any:
        return 7

    def __len__(self) -> int:
        return 5

    def __bool__(self) -> bool:
        NOTES.append("bool")
        return False

    def __iter__(self) -> Any:
        return iter([1, 2])


class Unit:
    """An object; whichever function it is, it answers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func.__name__, len(args), kwargs and sorted(kwargs)

    def __radd__(self, other: Any) -> str:
        return "never"


class Scaling(TorchFunctionMode):
    def __init__(self, by: float = 2) -> None:
        super().__init__()
        self.by = by
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        NAMES["by"] += 1
        NOTES.append((func.__name__, types))
        result = func(*args, **(kwargs or {}))
        return result * self.by if func is torch.sin else result


class MyParameter(nn.Parameter):
    def scaled(self) -> Any:
        return self * 2


ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.add: lambda a, b: ("add", b), torch.Tensor.shape.__get__: lambda a: (9, 9),
    torch.Tensor.__len__: lambda a: 42, torch.Tensor.__bool__: lambda a: False,
    F.gelu: lambda a, approximate="none": approximate,
}
LAYERS = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GELU(), nn.Softmax(-1))
OUTER = Scaling(3)


def make(kind: str) -> Any:
    x = torch.arange(4.0).reshape(2, 2) / 3 + 0.1
    if kind == "pair":
        return Pair(x, x + 1)
    kinds = {"noted": Noted, "below": Below, "plain": Plain, "table": Table, "own": Own,
             "refusing": Refusing}
    return x.as_subclass(kinds[kind]) if kind in kinds else (
        MyParameter(x) if kind == "parameter" else Unit() if kind == "unit" else x)


def tried(*calls: Callable[[], Any]) -> list[Any]:
    found = []
    for call in calls:
        try:
            found.append(call())
        except TypeError as error:
            found.append(str(error))
    return found


def in_modes(x: Any) -> Any:
    with Scaling(2) as one, BaseTorchFunctionMode(), Scaling(5) as two:
        y = torch.sin(x) + x.shape[0]
    return y, one.seen, two.seen, torch.sin(x)


def in_mode_around(x: Any) -> Any:
    with OUTER:
        made = torch.ones(2), F.relu(x), len(x), LAYERS(x), 1 - x
        with torch._C.DisableTorchFunction():
            return made, torch.sin(x)


def in_block(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
    return y, x + 1


def tagged(x: Any) -> Any:
    x.tag = "new"
    made = x * 2 - 1
    return made.tag, made, x.tag, hasattr(made, "other")


def in_place(x: Any, y: Any) -> Any:
    x += 1
    x.mul_(2)
    x[0] = 5
    view = x.view(-1)
    view.add_(y.sum())
    return x, view


def with_plain_attribute(x: Any) -> Any:
    made = x.as_subclass(Plain)
    made.tag = 3
    return made, made + 1, made.tag


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "operators": (lambda t: (1 + t, 2 - t, t * t, t / 2, t // 2, t ** 2, -t, abs(t), t @ t, t[0],
                             t[1:], t < 0, t == t, ~(t > 0), 2 / t, t % 2, 2 ** t), ("noted",)),
    "functions": (lambda t: (F.relu(t), F.softmax(t, 0), torch.cat([t, t]), torch.stack((t, t)),
                             torch.sum(input=t, dim=0), t.split(1), t.max(0), torch.topk(t, 1),
                             F.linear(torch.ones(2, 2), t), F.layer_norm(t, (2,)),
                             torch.einsum("ij,jk->ik", t, t), LAYERS(t)), ("noted",)),
    "attributes": (lambda t: (t * t.shape[0], t.dtype, t.T, t.ndim, t.requires_grad, len(t),
                              [row + 1 for row in t], t.data, t.numel()), ("noted",)),
    "order": (lambda s, t, x: (t + s, x + s, s + t, torch.where(x > 0, t, s), s.twice,
                               F.mse_loss(x, s), t.add(s)), ("below", "noted", "tensor")),
    "in place": (in_place, ("noted", "tensor")),
    "plain": (lambda p, x: (p + x, x + p, p.sum(), p, x * 1, p.max(0), p.as_subclass(torch.Tensor),
                            isinstance(p + 1, Plain), type(p * 2) is Plain), ("plain", "tensor")),
    "attribute of one that is made": (with_plain_attribute, ("tensor",)),
    "parameter": (lambda p, x: (p.scaled(), x @ p, p, type(p) is MyParameter, type(p * 1)),
                  ("parameter", "tensor")),
    "wrapper": (lambda p, x: (p + 1, p * 2, p / 5, p.a, p.shape, F.relu(p), p.view(4, 1), x @ p,
                              p.T, p[0]), ("pair", "tensor")),
    "wrapper that is made": (lambda x: Pair(x, x) @ Pair(x, x + 1), ("tensor",)),
    "table": (lambda t: (torch.add(t, 1), t.shape, len(t), 1 if t else 2, F.gelu(t), t.ndim,
                         F.gelu(t, approximate="tanh"), t + 1), ("table",)),
    "tags": (tagged, ("table",)),
    "nobody": (lambda t, n, r: tried(lambda: torch.tanh(t), lambda: torch.mul(r, n),
                                     lambda: n + r, lambda: r - 1, lambda: F.relu(r)),
               ("table", "noted", "refusing")),
    "own operators": (lambda o, x: (o + 1, x + o, len(o), 5 if o else 6, list(o), o * 2, -o, o[0]),
                      ("own", "tensor")),
    "object": (lambda u, x: (torch.add(x, u), x + u, torch.sum(u), torch.stack([x, u]), F.relu(u),
                             torch.add(input=x, other=u)), ("unit", "tensor")),
    "modes": (in_modes, ("tensor",)),
    "modes and classes": (in_modes, ("noted",)),
    "a global mode": (in_mode_around, ("tensor",)),
    "turned off": (in_block, ("noted",)),
}


def shown(value: Any) -> Any:
    """A value by classes, numbers and attributes."""
    with torch._C.DisableTorchFunction():
        if isinstance(value, Pair):
            return Pair, shown(value.a), shown(value.b)
        if isinstance(value, torch.Tensor):
            plain = value.as_subclass(torch.Tensor).detach().clone()
            return type(value), plain, sorted(value.__dict__.items())
        if isinstance(value, tuple | list):
            return type(value).__name__, [shown(item) for item in value]
        return type(value) if isinstance(value, Unit) else value


def check(got: Any, want: Any) -> None:
    """Equal, tensors nearly."""
    left, right = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert left[1] == right[1], (got, want)
    for one, other in zip(left[0], right[0], strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other, (got, want)


def outcome(function: Callable[..., Any], kinds: tuple[str, ...]) -> Any:
    given = [make(kind) for kind in kinds]
    NOTES.clear()
    OUTER.seen.clear()
    result = function(*given)
    return shown((result, given)), [*NOTES], [*OUTER.seen]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.every_combination
def test_as_in_eager(name: str, backend: str) -> None:
    program, kinds = PROGRAMS[name]
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for by in (2, 4):
        OUTER.by = by
        check(outcome(compiled, kinds), outcome(program, kinds))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", [Scaling, BaseTorchFunctionMode, Counting])
def test_modes_around(kind: Any, backend: str) -> None:
    def program(x: Any) -> Any:
        return torch.sin(x) + x.shape[0], F.relu(x)

    compiled, seen = dynamo.compile(program, backend=backend, fullgraph=True), []
    for mode in (kind(), kind()):
        for function in (program, compiled):
            with mode:
                found = outcome(function, ("noted",))
            check(outcome(function, ("noted",)), outcome(program, ("noted",)))
            seen.append((found, [*getattr(mode, "seen", ())]))
            getattr(mode, "seen", []).clear()
    check(seen[1::2], seen[::2])


def test_fresh_modes_share_a_graph() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = dynamo.compile(lambda x: torch.sin(x) + 1, backend=backend, fullgraph=True)
    for by in [2] * 5:
        with Scaling(by):
            found = compiled(torch.ones(2))
        torch.testing.assert_close(found, torch.sin(torch.ones(2)) * by + 1)
    assert len(graphs) == 2  # the global number that the mode counts up is one of the program's


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad * 3


def broken_in_mode(x: Any) -> Any:
    with Scaling(2) as mode:
        y = torch.sin(x)
        dynamo.graph_break()
        y = torch.sin(y)
    return y, mode.seen


def own_gradient(x: Any) -> Any:
    made = x.detach().requires_grad_()
    (made * made).sum().backward()
    return made.grad


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "inside of a mode": (broken_in_mode, "tensor"), "a gradient": (own_gradient, "noted"),
    "a function with a backward": (lambda x: Doubled.apply(x), "noted"),
    "between": (lambda x: (x + 1, dynamo.graph_break(), x * 2), "noted"),
    "a wrapper": (lambda x: (x + 1, dynamo.graph_break(), x * 2), "pair"),
    "values": (lambda x: x + 1 if x.sum() > 0 else x - 1, "noted"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_keep_the_meaning(name: str) -> None:
    program, kind = BROKEN[name]
    compiled = dynamo.compile(program, backend="eager")
    for _ in range(2):
        check(outcome(compiled, (kind,)), outcome(program, (kind,)))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_of_subclasses(backend: str) -> None:
    def program(x: Any) -> Any:
        hidden = F.relu(x) @ x
        return hidden, (hidden * x).sum()

    for kind in ("noted", "plain"):
        found = []
        for function in (program, dynamo.compile(program, backend=backend, fullgraph=True)):
            given = make(kind).detach().requires_grad_()
            hidden, total = function(given)
            wanted = [given, hidden] if backend == "eager" else [given]  # one node has all outputs
            found.append([*map(shown, torch.autograd.grad(total, wanted))])
        check(found[1], found[0])


def test_a_replaced_function_is_seen() -> None:
    class Changing(Noted):
        pass

    compiled = dynamo.compile(lambda x: x + 1, backend="eager")
    x = make("tensor").as_subclass(Changing)
    assert type(compiled(x)) is Changing
    Changing.__torch_function__ = classmethod(lambda *given: "changed")  # type: ignore
    assert compiled(x) == "changed"


def test_a_wrapper_becomes_a_parameter() -> None:
    def program(x: Any) -> Any:
        made = nn.Parameter(Quiet(x, x + 1), requires_grad=False)
        return isinstance(made, nn.Parameter), made * 2, made

    for backend in ("eager", "inductor"):
        is_one, double, made = dynamo.compile(program, backend=backend, fullgraph=True)(
            torch.ones(2))
        assert is_one and isinstance(made, nn.Parameter) and type(made) is Quiet
        torch.testing.assert_close(double.b, torch.full((2,), 4.0))


@dataclass
class Settings:
    by: float
    name: str = "rows"


class Configured(Quiet):
    """Its function reads settings and sizes of tensors that views have made."""

    def __init__(self, a: Any, b: Any, settings: Any, block: Any) -> None:
        super().__init__(a, b)
        self.settings, self.block = settings, block

    @staticmethod
    def __new__(cls: Any, a: Any, b: Any, settings: Any, block: Any) -> Any:
        return Pair.__new__(cls, a, b)

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], (self.settings, self.block)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Configured(inner["a"], inner["b"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func in (torch.ops.aten.t.default, torch.ops.aten.detach.default), func
        (of,) = args
        made = cls(func(of.a), func(of.b), of.settings, list(of.block)[::-1])
        return return_and_correct_aliasing(func, args, kwargs or {}, made)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.linear:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        weight = args[1].t()
        by = weight.settings.by if weight.settings.name == "rows" else 1
        return args[0] @ weight.a * by + sum(weight.block)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_settings_of_what_a_view_made(backend: str) -> None:
    dynamo.reset()
    linear = dynamo.compile(lambda x, w: F.linear(x, w), backend=backend, fullgraph=True)
    settings = Settings(0.5)
    for rows, by in ((3, 0.5), (5, 0.5), (7, 0.5), (7, 2.0)):
        settings.by = by
        inner = torch.randn(rows, 4)
        weight = Configured(inner, inner + 1, settings, [1, rows])
        x = torch.randn(2, 4)
        torch.testing.assert_close(linear(x, weight), x @ inner.t() * by + 1 + rows)
    assert dynamo.counters["stats"]["graphs"] <= 4 and not dynamo.counters["graph_break"]
