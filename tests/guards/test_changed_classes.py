"""Classes and modules that are changed behind a compiled function: their bases, their names, what an instance calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo


class Scope:
    """Fresh classes for each case, and an instance of each."""

    def __init__(self) -> None:
        class One:
            def go(self, x):
                return x + 1

        class Two:
            def go(self, x):
                return x + 2

        class Child(One):
            """A text."""

            def twice(self, x):
                return super().go(x) * 2

        class Grandchild(Child):
            pass

        class Long(list):
            def __len__(self):
                return 7

        class Plain(list):
            pass

        class Numbers(Plain):
            pass

        class Error(ValueError):
            pass

        class Kind(type):
            pass

        class Labelled(metaclass=Kind):
            label = "own"

        class Helper(nn.Module):
            def helped(self, x):
                return x * 50

        class OtherHelper(nn.Module):
            def helped(self, x):
                return x * 60

        class Net(Helper):
            def forward(self, x):
                return self.helped(x)

        self.One, self.Two, self.Child, self.Long, self.Numbers, self.Error = One, Two, Child, Long, Numbers, Error
        self.Kind, self.Labelled = Kind, Labelled
        self.OtherHelper, self.Net = OtherHelper, Net
        self.child, self.grandchild, self.numbers, self.net = Child(), Grandchild(), Numbers([1]), Net()
        self.nest = nn.Sequential(Net(), Net())


def caught(s, x):
    try:
        raise s.Error("text")
    except KeyError:
        return x + 2
    except ValueError:
        return x + 1


def stored(s, x):
    s.child.z = 5
    return s.child.__dict__["z"], x + 1


def stored_in_new(s, x):
    made = s.Child()
    made.z = 5
    return made.__dict__["z"], x + 1


def deleted(s, x):
    s.child.z = 5
    del s.child.z
    return "z" in s.child.__dict__, x + 1


class OtherKind(type):
    def __getattribute__(cls, name):
        return "other" if name == "label" else type.__getattribute__(cls, name)


OTHER_STORE = property(None, lambda self, v: self.__dict__.update(z=6), lambda self: None)


def bases(name: str, *others: Any) -> Callable[[Scope], None]:
    def change(s: Scope) -> None:
        getattr(s, name).__bases__ = tuple(getattr(s, o) if isinstance(o, str) else o for o in others)

    return change


def part(name: str, attribute: str, value: Any) -> Callable[[Scope], None]:
    return lambda s: setattr(getattr(s, name), attribute, value)


CASES: dict[str, tuple[Callable[..., Any], Callable[[Scope], None]]] = {
    "a method of a base": (lambda s, x: s.child.go(x), bases("Child", "Two")),
    "of a base's base": (lambda s, x: s.grandchild.go(x), bases("Child", "Two")),
    "one base more": (lambda s, x: s.child.go(x), bases("Child", "Two", "One")),
    "super": (lambda s, x: s.child.twice(x), bases("Child", "Two")),
    "isinstance": (lambda s, x: (isinstance(s.child, s.One), x + 1), bases("Child", "Two")),
    "issubclass": (lambda s, x: (issubclass(s.Child, s.Two), x + 1), bases("Child", "Two")),
    "hasattr": (lambda s, x: (hasattr(s.child, "go"), x + 1), lambda s: delattr(s.One, "go")),
    "length of a list": (lambda s, x: (len(s.numbers), x + 1), bases("Numbers", "Long")),
    "caught": (caught, bases("Error", KeyError)),
    "a module's method": (lambda s, x: s.net(x), bases("Net", "OtherHelper")),
    "made in the part": (lambda s, x: s.Child().go(x), bases("Child", "Two")),
    "the bases": (lambda s, x: (s.Child.__bases__, s.Child.__mro__, x + 1), bases("Child", "Two")),
    "name": (lambda s, x: (type(s.child).__name__, x + 1), part("Child", "__name__", "Other")),
    "qualified name": (lambda s, x: (s.Child.__qualname__, x + 1), part("Child", "__qualname__", "Other")),
    "text": (lambda s, x: (f"{s.Child}", x + 1), part("Child", "__qualname__", "Other")),
    "module": (lambda s, x: (s.Child.__module__, x + 1), part("Child", "__module__", "other")),
    "docstring": (lambda s, x: (s.Child.__doc__, x + 1), part("Child", "__doc__", "Other.")),
    "no docstring": (lambda s, x: (s.Child.__doc__, x + 1), part("Child", "__doc__", None)),
    "a store": (stored, part("Child", "z", OTHER_STORE)),
    "a store in a new object": (stored_in_new, part("Child", "z", OTHER_STORE)),
    "a deletion": (deleted, part("Child", "z", OTHER_STORE)),
    "how classes are read": (
        lambda s, x: (s.Labelled.label, x + 1), part("Kind", "__getattribute__", OtherKind.__getattribute__)),
    "_call_impl": (lambda s, x: s.net(x), lambda s: setattr(s.net, "_call_impl", torch.sin)),
    "_call_impl within": (lambda s, x: s.nest(x), lambda s: setattr(s.nest[1], "_call_impl", torch.sin)),
    "_compiled_call_impl": (lambda s, x: s.net(x), lambda s: setattr(s.net, "_compiled_call_impl", torch.sin)),
    "_call_impl of the class": (lambda s, x: s.net(x), lambda s: setattr(s.Net, "_call_impl", lambda self, x: x * 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    program, change = CASES[name]
    s, x = Scope(), torch.randn(3)
    compiled = dynamo.compile(program, backend="eager")
    before = [repr(compiled(s, x)) for _ in range(3)]
    assert before == [repr(program(s, x))] * 3
    change(s)
    assert [repr(compiled(s, x)) for _ in range(3)] == [repr(program(s, x))] * 3
    assert repr(program(s, x)) != before[0]


@pytest.mark.parametrize("ask", (lambda o: issubclass(o, ValueError), lambda o: isinstance(ValueError(), o)))
def test_what_is_no_class_may_be_one_next(ask: Callable[[Any], bool]) -> None:
    def program(o, x):
        try:
            return ask(o), x + 1
        except TypeError:
            return None, x + 1

    compiled, x = dynamo.compile(program, backend="eager"), torch.randn(3)
    for o in (3, ValueError, "text", KeyError, len, 4):
        assert compiled(o, x)[0] is program(o, x)[0]


def test_bases_changed_to_and_fro() -> None:
    s, x = Scope(), torch.randn(3)
    compiled = dynamo.compile(lambda s, x: s.child.go(x), backend="eager")
    for n in range(12):
        s.Child.__bases__ = (s.One, s.Two)[n % 2 :: 2]
        assert torch.equal(compiled(s, x), s.child.go(x))


def test_classes_are_not_kept_alive() -> None:
    s, x = Scope(), torch.randn(3)
    compiled = dynamo.compile(lambda s, x: s.grandchild.go(x), backend="eager")
    for _ in range(3):
        compiled(s, x)
    alive = weakref.ref(s.Child)
    del s
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("module", ["torch.nn.modules.mine", "torch", "types", "builtins", "enum"])
def test_a_class_that_only_says_it_is_a_librarys_changes(module: str) -> None:
    class Own:
        pass

    Own.__module__ = module
    own, x = Own(), torch.zeros(())

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + hasattr(own, "late")

    compiled = dynamo.compile(program, backend="eager")
    assert compiled(x) == 0
    Own.late = 1  # type: ignore[attr-defined]
    assert compiled(x) == 1
