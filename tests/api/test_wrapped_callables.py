"""Modules, classes and methods that `compile` and `disable` have wrapped: they stay what they are,
and inside of compiled functions they are traced, or not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    dynamo.reset()


def make_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())


class Scaled(nn.Linear):
    """With a call of its own."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) * 2


class Methods:
    """Methods of each kind."""

    @dynamo.compile(backend="eager")
    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    @dynamo.compile(backend="eager")
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + len(cls.__name__)

    @staticmethod
    @dynamo.compile(backend="eager")
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 3

    @property
    @dynamo.compile(backend="eager")
    def read(self) -> torch.Tensor:
        return X + 4

    @dynamo.compile(backend="eager")
    def __mul__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5

    @dynamo.disable
    def left_out(self, x: torch.Tensor) -> torch.Tensor:
        return x + 6

    @classmethod
    @dynamo.disable(reason="told")
    def left_out_of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 7


USES: dict[str, Callable[[Methods, torch.Tensor], torch.Tensor]] = {
    "plain": lambda m, x: m.plain(x),
    "through the class": lambda m, x: Methods.plain(m, x),
    "class method": lambda m, x: m.of_class(x),
    "static method": lambda m, x: m.static(x),
    "property": lambda m, x: m.read + x,
    "operator": lambda m, x: m * x,
    "at two places": lambda m, x: m.plain(x) + Methods().plain(x) + Methods.plain(m, x),
}


@pytest.mark.parametrize("name", USES)
def test_compiled_methods_are_traced(name: str) -> None:
    use = USES[name]
    compiled = dynamo.compile(use, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(Methods(), X), use(Methods(), X), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "reason"), [
    ("left_out", "Methods.left_out: dynamo.disable"),
    ("left_out_of_class", "Methods.left_out_of_class: told"),
])
def test_disabled_methods_say_why(name: str, reason: str) -> None:
    compiled = dynamo.compile(lambda m, x: getattr(m, name)(x) * 2, backend="eager")
    assert torch.equal(compiled(Methods(), X), getattr(Methods(), name)(X) * 2)
    assert dict(dynamo.counters["graph_break"]) == {f"call_disabled: {reason}": 1}


@pytest.mark.parametrize("make", [make_layer, lambda: Scaled(3, 3)], ids=["module", "own call"])
@pytest.mark.parametrize("place", ["argument", "submodule", "closure"])
def test_compiled_modules_are_traced(make: Callable[[], nn.Module], place: str) -> None:
    plain = make()
    inner = dynamo.compile(plain, backend="eager")
    seen: list[Any] = []
    inner.register_forward_hook(lambda *given: seen.append(given[0]))
    outer: Any = {"argument": lambda x, inner=inner: inner(x), "submodule": nn.Sequential(inner),
                  "closure": lambda x: inner(x)}[place]
    compiled = dynamo.compile(outer, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(X), plain(X))
    assert seen == [plain, plain] * 2
    assert dynamo.counters["stats"]["graphs"] == 1


def test_a_hook_put_on_a_compiled_module_is_seen_inside() -> None:
    inner = dynamo.compile(make_layer(), backend="eager")
    compiled = dynamo.compile(lambda x: inner(x) + 1, backend="eager")
    before = compiled(X)
    inner.register_forward_hook(lambda module, args, result: result * 3)
    torch.testing.assert_close(compiled(X), (before - 1) * 3 + 1)


def test_a_disabled_module_stays_a_module() -> None:
    plain = make_layer()
    disabled = dynamo.disable(plain, reason="slow to compile")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = disabled

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    outer = Outer()
    assert isinstance(disabled, nn.Sequential)
    assert [name for name, _ in outer.named_parameters()] == ["inner.0.weight", "inner.0.bias"]
    assert torch.equal(dynamo.compile(outer, backend="eager")(X), plain(X) + 1)
    assert set(dynamo.counters["graph_break"]) == {"call_disabled: Sequential: slow to compile"}
    assert type(copy.deepcopy(disabled)) is type(pickle.loads(pickle.dumps(disabled))) is nn.Sequential
    disabled.train(False)
    assert not plain.training


def make_class() -> type:
    class Net(nn.Module):
        def __init__(self, factor: float = 2.0) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sin() + 1) * self.factor

    return Net


def make_callable_class() -> type:
    class Called:
        def __init__(self, factor: float = 2.0) -> None:
            self.factor = factor

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sin() + 1) * self.factor

    return Called


@pytest.mark.parametrize("make", [make_class, make_callable_class])
def test_a_compiled_class_is_the_class_and_its_instances_are_compiled(make: Callable[[], type]) -> None:
    wanted = make()()(X)
    cls = make()
    assert dynamo.compile(backend="eager")(cls) is cls
    sub = type("Sub", (cls,), {})
    for kind in (cls, sub):
        dynamo.reset()
        made = kind()
        assert isinstance(made, cls)
        assert torch.equal(made(X), wanted)
        assert dynamo.counters["stats"] == {"frames": 1, "graphs": 1}
    outer = dynamo.compile(lambda x: sub()(x) + made(x), backend="eager", fullgraph=True)
    assert torch.equal(outer(X), wanted * 2)


@pytest.mark.parametrize("make", [make_class, make_callable_class])
def test_instances_of_a_disabled_class_are_not_traced(make: Callable[[], type]) -> None:
    cls = make()
    assert dynamo.disable(cls) is cls
    made = cls()
    compiled = dynamo.compile(lambda x: made(x) + 1, backend="eager")
    assert torch.equal(compiled(X), (X.sin() + 1) * 2 + 1)
    assert dict(dynamo.counters["graph_break"]) == {
        f"call_disabled: {cls.__qualname__}: dynamo.disable": 1}


@pytest.mark.parametrize("wrong", [classmethod(len), property(len)], ids=["classmethod", "property"])
def test_what_is_not_called_says_where_to_compile(wrong: Any) -> None:
    with pytest.raises(TypeError, match="compile the function, below the other decorator"):
        dynamo.compile(wrong)


def test_declared_dims_of_a_class() -> None:
    with pytest.raises(TypeError, match="compile the instances of the class"):
        dynamo.compile(make_class(), dynamic={"x": {0: dynamo.Dim("batch")}})
