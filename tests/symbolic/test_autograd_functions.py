"""`torch.autograd.Function` in traced programs: one node, and eager's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import dynamo
from dynamo.testing import CompileCounter

SETTINGS = {"scale": 2.0}
SEEN: list[str] = []
LEAF = torch.rand(3, dtype=torch.float64, requires_grad=True)


class Odd(Function):
    """Its gradient is not that of its value."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(a)
        ctx.k = k
        with torch.enable_grad():
            b = a * 1
        return b.detach() * k

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return grad * a * 7 * ctx.k if ctx.needs_input_grad[0] else None, None


class Modern(Function):
    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a * b, (a > b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        a, b = ctx.saved_tensors
        return grad * b * 3, grad * a * 5


class Scaled(Function):
    """Reads what may change."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * SETTINGS["scale"]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * SETTINGS["scale"] * 10


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2


class ModernDirty(Function):
    """Its second argument is written too, and marked."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(b)
        b.mul_(3)
        return a, b, a * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(*inputs)
        ctx.mark_non_differentiable(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: Any, h: torch.Tensor) -> Any:
        return g * 5 + h, None


class Unmarked(Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.mul_(2)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2, None


class Sparse(Function):
    """Returns what is no tensor, saves what it has made and None, leaves gradients unmaterialized."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> Any:
        b = a.exp()
        ctx.save_for_backward(b, None, a)
        ctx.set_materialize_grads(False)
        return b, None, "text", a * 2, a.shape

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any, __: Any, h: Any, ___: Any) -> Any:
        b, none, a = ctx.saved_tensors
        assert none is None
        if g is None:
            return h * 10
        return g * b + a if h is None else g * b + h


class Noisy(Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        SEEN.append("forward")
        return a + len(SEEN)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        SEEN.append("backward")
        return grad


class Reading(Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * a.sum().item()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad


def straight(x: torch.Tensor) -> Any:
    return Odd.apply(x * LEAF, 2.0) + Odd.apply(x, 3.0), torch.is_grad_enabled()


def without_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = Odd.apply(x * LEAF, 2.0)
    return y * LEAF


def modern(x: torch.Tensor) -> Any:
    product, larger = Modern.apply(x, LEAF)
    return torch.where(larger, product, -product)


def scaled(x: torch.Tensor) -> Any:
    return Scaled.apply(x * LEAF)


def dirty(x: torch.Tensor) -> Any:
    return Dirty.apply(x * LEAF) + 1


def dirty_arguments(x: torch.Tensor) -> Any:
    t, d = x * LEAF, x.detach() * 1
    a, b, c = ModernDirty.apply(t, d)
    return a * b + c + t * d, a is t, b is d


def dirty_view(x: torch.Tensor) -> Any:
    t = x * LEAF
    Dirty.apply(t[0])
    return t * 2


def dirty_from_outside(x: torch.Tensor) -> Any:
    return Dirty.apply(x) * LEAF, x


def dirty_leaf(x: torch.Tensor) -> Any:
    try:
        return Dirty.apply(x.clone().requires_grad_()) * x
    except RuntimeError as error:
        return x * LEAF, str(error)[:40]


def unmarked(x: torch.Tensor) -> Any:
    t = x.detach() * 1
    return Unmarked.apply(x * LEAF, t) + t


def first_of_two(x: torch.Tensor) -> Any:
    value, none, text, _, shape = Sparse.apply(x * LEAF)
    return value * shape[0], none, text


def second_of_two(x: torch.Tensor) -> Any:
    return Sparse.apply(x * LEAF)[3]


def both_of_two(x: torch.Tensor) -> Any:
    found = Sparse.apply(x * LEAF)
    return found[0] + found[3]


def noisy(x: torch.Tensor) -> Any:
    return Noisy.apply(x * LEAF) * 2, list(SEEN)


def reading(x: torch.Tensor) -> Any:
    return Reading.apply(x * LEAF) * 2


def after_changes(x: torch.Tensor) -> Any:
    SETTINGS["scale"] += 1
    y = Scaled.apply(x * LEAF)
    SETTINGS["scale"] -= 1
    return y


def check(f: Callable[[torch.Tensor], Any], graphs: int | None, backend: str = "eager") -> None:
    dynamo.reset()
    counter = CompileCounter(backend)
    compiled = dynamo.compile(f, backend=counter, fullgraph=graphs == 1)
    for call in range(3):
        SETTINGS["scale"] = float(call // 2 + 2)
        results = []
        for run in (f, compiled):
            SEEN.clear()
            torch.manual_seed(call)
            LEAF.grad = None
            found = run(torch.rand(2, 3, dtype=torch.float64))
            flat = list(found) if isinstance(found, tuple) else [found]
            if flat[0].requires_grad:
                flat[0].square().sum().backward()
            results.append([*flat, LEAF.grad, list(SEEN)])
        for want, got in zip(*results, strict=True):
            if backend == "eager" or not isinstance(want, torch.Tensor):
                same = torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got
                assert same, (call, want, got)
            else:
                torch.testing.assert_close(got, want)
    assert graphs is None or counter.frame_count == graphs


@pytest.mark.parametrize("f,graphs", [(straight, 1), (without_grad, 1), (scaled, 2)])
def test_one_graph(f: Callable[[torch.Tensor], Any], graphs: int) -> None:
    check(f, graphs)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [
    modern, dirty, dirty_arguments, dirty_view, dirty_from_outside, first_of_two, second_of_two, both_of_two,
])
def test_corners_in_one_graph(f: Callable[[torch.Tensor], Any], backend: str) -> None:
    check(f, 1, backend)


@pytest.mark.parametrize("f", [noisy, reading, after_changes, dirty_leaf, unmarked])
def test_any_graphs(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, None)


def test_function_of_a_module_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "__module__", "torch.nn.modules._functions")
    x, y = (torch.rand(3, requires_grad=True) for _ in range(2))
    y.data = x.data.clone()
    compiled = dynamo.compile(lambda a: Odd.apply(a, 2.0) + 1, backend="eager", fullgraph=True)
    found, wanted = compiled(x), Odd.apply(y, 2.0) + 1
    found.sum().backward()
    wanted.sum().backward()
    assert torch.equal(found, wanted) and torch.equal(x.grad, y.grad)


class Base(Function):
    scale = 2.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 10


class Settings:
    def __init__(self) -> None:
        self.inner: dict[str, Any] = {"scales": [1.0]}


HELD = Settings()
COUNTS: list[int] = []
FACTOR = 1.0


def make_in_closure() -> tuple[type[Function], Callable[[float], None]]:
    factor = 1.0

    def change(value: float) -> None:
        nonlocal factor
        factor = value

    class InClosure(Base):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * factor

    return InClosure, change


IN_CLOSURE, CHANGE = make_in_closure()


class ByGlobal(Base):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * FACTOR


class ByClass(Base):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * ByClass.scale


class ByObject(Base):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * HELD.inner["scales"][0]


class ByTensor(Base):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * a.factor  # type: ignore[attr-defined]


def change_global(value: float, x: torch.Tensor) -> None:
    global FACTOR
    FACTOR = value


def change_class(value: float, x: torch.Tensor) -> None:
    Base.scale = value


def change_object(value: float, x: torch.Tensor) -> None:
    HELD.inner["scales"][0] = value


def change_holder(value: float, x: torch.Tensor) -> None:
    HELD.inner = {"scales": [value]}


def change_tensor(value: float, x: torch.Tensor) -> None:
    x.factor = value  # type: ignore[attr-defined]


def change_closure(value: float, x: torch.Tensor) -> None:
    CHANGE(value)


@pytest.mark.parametrize("function,change", [
    (ByGlobal, change_global), (ByClass, change_class), (ByObject, change_object),
    (ByObject, change_holder), (ByTensor, change_tensor), (IN_CLOSURE, change_closure),
])  # fmt: skip
def test_what_was_changed_before_is_read(
    function: Any, change: Callable[[float, torch.Tensor], None]
) -> None:
    def f(x: torch.Tensor, value: float) -> torch.Tensor:
        change(value, x)
        y = function.apply(x)
        change(1.0, x)
        return y

    compiled = dynamo.compile(f, backend="eager")
    for value in (3.0, 4.0, 5.0):
        x = torch.rand(3, requires_grad=True)
        y = compiled(x, value)
        assert torch.equal(y, x * value)
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 10.0))


def test_what_it_does_not_read_may_be_changed_before() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        COUNTS.append(len(COUNTS))
        HELD.inner["calls"] = len(COUNTS)
        return Odd.apply(x, 2.0)  # type: ignore[no-any-return]

    COUNTS.clear()
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    x = torch.rand(3)
    assert torch.equal(compiled(x), x * 2)
    assert COUNTS == [0] and HELD.inner["calls"] == 1


class OfTheClass(Function):
    factor = 3.0

    @classmethod
    def forward(cls, ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a * cls.factor

    @classmethod
    def backward(cls, ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0] * cls.factor * 5


class OfAnother(OfTheClass):
    factor = 7.0


class InTwoParts(Function):
    factor = 3.0

    @classmethod
    def forward(cls, a: torch.Tensor) -> torch.Tensor:
        return a * cls.factor

    @classmethod
    def setup_context(cls, ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0] * 5


class Plain(Function):
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(a)
        return a * 3

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0] * 5


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("cls", [OfTheClass, OfAnother, InTwoParts, Plain])
def test_methods_that_are_not_static(cls: Any, backend: str) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return cls.apply(a + 1) * 2

    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for size in (3, 4):
        a, b = (torch.arange(float(size), requires_grad=True) for _ in range(2))
        found, wanted = compiled(a), f(b)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(a), f(a))
