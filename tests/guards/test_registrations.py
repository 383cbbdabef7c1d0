"""Classes that get registered with abstract ones after a function was compiled."""

from __future__ import annotations

import abc
import collections.abc
import gc

import torch
from torch import Tensor

import dynamo
from dynamo.guards.registrations import Registrations


def classes() -> tuple[type, type, type]:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Sub(Shape):
        pass

    class Round:
        pass

    return Shape, Sub, Round


def test_only_answers_that_turn_count() -> None:
    shape, sub, cls = classes()
    _, other, _ = classes()
    turned = Registrations()
    turned.deny(cls, shape)
    before = turned()
    other.register(cls)
    shape.register(type("More", (), {}))
    assert turned() == before
    sub.register(cls)
    assert turned() == turned() == before + 1
    turned.deny(cls, int)
    collections.abc.Mapping.register(type("Last", (), {}))
    assert turned() == before + 1


def test_classes_that_are_gone_are_forgotten() -> None:
    turned = Registrations()
    turned.deny(classes()[2], classes()[0])
    gc.collect()
    collections.abc.Mapping.register(type("Any", (), {}))
    turned()
    assert not turned._denied


def test_an_answer_that_raises_counts() -> None:
    shape, _, cls = classes()
    turned = Registrations()
    turned.deny(cls, shape)
    before = turned()

    def fail(cls: type, other: type) -> bool:
        raise RuntimeError

    shape.__subclasshook__ = classmethod(fail)  # type: ignore[assignment]
    collections.abc.Mapping.register(type("Any", (), {}))
    assert turned() == before + 1


def test_other_registrations_do_not_recompile() -> None:
    """As the import of a library makes them."""
    shape, sub, cls = classes()
    traces = []

    def backend(gm, inputs):  # type: ignore[no-untyped-def]
        traces.append(gm)
        return gm.forward

    @dynamo.compile(backend=backend)
    def program(x: Tensor, kind: object) -> Tensor:
        return x + 1 if isinstance(kind, shape) else x * 2

    x, kind = torch.ones(2), cls()
    assert program(x, kind).tolist() == [2, 2]
    collections.abc.Mapping.register(type("Unrelated", (), {}))
    x = torch.full((2,), 3.0)
    assert program(x, kind).tolist() == [6, 6] and len(traces) == 1
    sub.register(cls)
    assert program(x, kind).tolist() == [4, 4] and len(traces) == 2
