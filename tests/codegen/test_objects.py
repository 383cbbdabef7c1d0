"""What new code calls to read and store attributes and items is C code that runs no override."""

from __future__ import annotations

import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import _C, hook
from dynamo.codegen.effects import raw_store
from dynamo.symbolic.python.objects import ObjectVar


class Loud(OrderedDict[Any, Any]):
    """A dict whose overrides must not run."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("ran")

    __setitem__ = __missing__ = __getattribute__ = __setattr__ = __getitem__  # type: ignore


class Pair(tuple[Any, ...]):
    __getitem__ = Loud.__getitem__


class Items(list[Any]):
    __getitem__ = Loud.__getitem__


class Box:
    value = 1


def loud(**items: Any) -> Loud:
    made = Loud.__new__(Loud)
    for key, value in items.items():
        OrderedDict.__setitem__(made, key, value)
    return made


@pytest.mark.parametrize(
    ("container", "key", "item"),
    [({"a": 1}, "a", 1), (loud(a=1), "a", 1), (defaultdict(list, a=1), "a", 1), (Pair((1, 2)), 1, 2),
     (Items([1, 2]), -1, 2), ([1, 2], slice(1), [1]), (types.MappingProxyType({"a": 1}), "a", 1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_read_item(container: Any, key: Any, item: Any) -> None:
    assert _C.read_item(container, key) == item


@pytest.mark.parametrize("make", [dict, loud, lambda: defaultdict(list)], ids=["dict", "own", "default"])
@pytest.mark.parametrize("key", ["a", ("a", "b"), ()], ids=["text", "two", "none"])
def test_read_item_of_a_missing_key(make: Callable[[], Any], key: Any) -> None:
    mapping = make()
    with pytest.raises(KeyError) as caught:
        _C.read_item(mapping, key)
    assert caught.value.args == (key,) and len(mapping) == 0


def test_read_item_beyond_the_end_and_of_unhashable_keys() -> None:
    with pytest.raises(IndexError, match="list index out of range"):
        _C.read_item(Items(), 0)
    with pytest.raises(TypeError, match="unhashable"):
        _C.read_item({}, [])


def test_read_dict_and_entry() -> None:
    box, bare = Box(), object()
    assert _C.read_entry(box, "value") is None and _C.read_entry(bare, "value") is None
    assert _C.read_entry(Box, "value") == 1 and _C.read_entry(int, "own") is None
    box.value = 2
    assert _C.read_entry(box, "value") == 2
    assert _C.read_dict(box) is vars(box) and _C.read_dict(Box) == vars(Box)
    with pytest.raises(AttributeError):
        _C.read_dict(bare)


def test_stores() -> None:
    made = loud()
    _C.store_ordered(made, "a", 1)
    _C.store_attribute(made, "b", 2)
    assert list(OrderedDict.items(made)) == [("a", 1)]
    assert object.__getattribute__(made, "__dict__") == {"b": 2}
    with pytest.raises(TypeError, match="no OrderedDict"):
        _C.store_ordered({}, "a", 1)
    with pytest.raises(AttributeError):
        _C.store_attribute(object(), "a", 1)


class OwnStores(Box):
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1)


@pytest.mark.parametrize(
    ("kind", "store"),
    [(Box, _C.store_attribute), (OwnStores, _C.store_attribute), (Loud, _C.store_attribute),
     (KeyError, BaseException.__setattr__),
     (type("Local", (threading.local,), {}), threading.local.__setattr__)],
    ids=lambda value: getattr(value, "__qualname__", ""),
)  # fmt: skip
def test_which_store_a_class_gets(kind: type, store: Any) -> None:
    assert raw_store(ObjectVar(kind)) is store


def remember(x: torch.Tensor, state: Any) -> Any:
    state.seen["last"] = state.count
    state.count = None
    made = Box()
    made.value = x + 1
    return made, {**state.seen}


def test_new_code_calls_no_wrapper_of_a_slot() -> None:
    dynamo.reset()
    compiled = dynamo.compile(remember, backend="eager")
    state = Box()
    state.seen, state.count = {}, 1  # type: ignore[attr-defined]
    made, seen = compiled(torch.ones(1), state)
    assert made.value == 2 and seen == state.seen == {"last": 1}  # type: ignore[attr-defined]
    (entry,) = hook.entries(remember.__code__, compiled.region)
    called = [const for const in entry.code.co_consts if callable(const)]
    assert {_C.read_item, _C.read_dict, _C.store_attribute} <= {c for c in called if type(c) is type(len)}
    assert not [c for c in called if isinstance(c, types.WrapperDescriptorType)]
