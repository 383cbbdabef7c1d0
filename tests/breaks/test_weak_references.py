"""Weak references over graph breaks: an object lives as long as a local of eager would hold it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.symbolic.machine import finalizers

LOG: list[Any] = []


class Item:
    pass


def called_when_dead(reference: Any) -> None:
    LOG.append("dead")


def plain() -> Any:
    item = Item()
    reference = weakref.ref(item)
    alive = reference() is item
    del item
    return alive, reference() is None


def over_a_break() -> Any:
    item = Item()
    reference = weakref.ref(item)
    dynamo.graph_break()
    alive = reference() is not None
    dynamo.graph_break()
    item = None  # type: ignore[assignment]
    return alive, reference() is None


def made_in_a_call() -> Any:
    def make() -> Any:
        item = Item()
        dynamo.graph_break()
        return weakref.ref(item)

    return make()() is None


def a_dead_proxy() -> Any:
    item = Item()
    proxies = [weakref.proxy(item)]
    item = Item()  # type: ignore[assignment]
    proxy = proxies[0]
    dynamo.graph_break()
    proxy = weakref.proxy(item)
    return weakref.getweakrefcount(item), type(proxy)


def a_proxy_that_answers() -> Any:
    class Answers:
        def __getattr__(self, name: str) -> Any:
            LOG.append(name)
            raise AttributeError(name)

    item = Answers()
    proxy = weakref.proxy(item)
    dynamo.graph_break()
    proxy = None
    return weakref.getweakrefcount(item), proxy


def keys() -> Any:
    item, table = Item(), weakref.WeakKeyDictionary()  # type: ignore[var-annotated]
    table[item] = 1
    count = len(table)
    del item
    return count, len(table)


def values() -> Any:
    item, table = Item(), weakref.WeakValueDictionary()  # type: ignore[var-annotated]
    table["k"] = item
    count = len(table)
    item = None  # type: ignore[assignment]
    return count, len(table), list(table)


def members() -> Any:
    item = Item()
    group = weakref.WeakSet([item])
    count = len(group)
    item = None  # type: ignore[assignment]
    return count, len(group)


def with_a_callback() -> Any:
    item = Item()
    reference = weakref.ref(item, called_when_dead)
    LOG.append("made")
    del item
    LOG.append("let go")
    return reference() is None


def finalized() -> Any:
    item = Item()
    weakref.finalize(item, LOG.append, "final")
    LOG.append("made")
    del item
    LOG.append("let go")


def in_a_cycle() -> Any:
    item = Item()
    item.own = item  # type: ignore[attr-defined]
    reference = weakref.ref(item)
    del item
    gc.collect()
    return reference() is None


def in_a_list() -> Any:
    items = [Item()]
    reference = weakref.ref(items[0])
    items.clear()
    return reference() is None


def through_a_proxy() -> Any:
    item = Item()
    proxy = weakref.proxy(item)
    proxy.z = 4
    return item.z, weakref.getweakrefcount(item)  # type: ignore[attr-defined]


def called_twice() -> Any:
    item = Item()
    first, second = weakref.ref(item), weakref.ref(item, None)
    table = {first: 1}
    return first is second, table[second], type(first), first() is second() is item


def over_two_breaks() -> Any:
    item = Item()
    references = [weakref.ref(item)]
    dynamo.graph_break()
    same = references[0] is weakref.ref(item)
    dynamo.graph_break()
    return same, references[0]() is item, weakref.getweakrefcount(item)


def of_what_dies_at_once() -> Any:
    return weakref.ref(Item())(), weakref.ref(Tree().add)() is None


def of_what_has_none() -> Any:
    found = []
    for value in (5, [], "a", None, Item(), print, Item):
        try:
            found.append(weakref.ref(value)() is value)
        except TypeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("program", [
    called_twice, over_two_breaks, of_what_dies_at_once, of_what_has_none, plain, over_a_break, made_in_a_call, a_dead_proxy, a_proxy_that_answers, keys, values, members, with_a_callback, finalized,
    in_a_cycle, in_a_list, through_a_proxy,
])  # fmt: skip
def test_objects_die_as_in_eager(program: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y = x * 2
        return y + 1, program()

    found = []
    for call in (f, dynamo.compile(f, backend="eager")):
        LOG.clear()
        with dynamo.config.patch(suppress_errors=False):
            found.append((call(torch.ones(1))[1], list(LOG)))
    assert found[0] == found[1]


class Tree(torch.nn.Module):
    def __init__(self, parent: Any = None) -> None:
        super().__init__()
        self.parent = None if parent is None else weakref.ref(parent)
        self.inner, self.own, self.scale = [], None, 2.0

    def add(self) -> Any:
        self.inner.append(Tree(self))
        return self.inner[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own, of_x = weakref.ref(self), weakref.ref(x)
        y = x * self.own().scale
        of_y = weakref.ref(y)
        return of_x() + of_y()


def test_references_are_made_in_the_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        root = Tree()
        leaf = root.add().add()
        return tree(x) * leaf.parent().parent().scale, root, Tree(Tree()).parent

    tree = Tree()
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        found, root, dead = compiled(torch.ones(1))
        assert found.item() == 6 and dead() is None and tree.own() is tree
        assert root.inner[0].parent() is root and tree.own is weakref.ref(tree)


def test_each_class_is_asked_once() -> None:
    """However many of its instances a continuation is given."""
    items, asked = [Exception(at) for at in range(50)], []

    def telling(kind: type) -> Any:
        asked.append(kind)
        return lambda value: False

    assert not finalizers._holds([items, {"more": items}], telling)
    assert sorted(kind.__name__ for kind in asked if kind in (list, dict, Exception)) == [
        "Exception", "dict", "list"]
