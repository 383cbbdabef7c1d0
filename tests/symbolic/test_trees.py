"""Trees of containers are taken apart and built as in eager, mostly without tracing torch's code."""

import collections
import contextlib
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils import _pytree as pytree

import dynamo
from dynamo.symbolic.machine.frame import SymbolicFrame

Point = collections.namedtuple("Point", ["x", "y"])


class Pair:
    """A node that the program registers."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and (self.left, self.right) == (other.left, other.right)


class Listing(list):  # type: ignore[type-arg]
    """A leaf: subclasses are not registered."""


class Bare:
    """An object that is a leaf."""


pytree.register_pytree_node(
    Pair, lambda pair: ((pair.left, pair.right), "pair"), lambda parts, _: Pair(*parts))


def tree(name: str, t: torch.Tensor) -> Any:
    trees = {
        "leaf": t,
        "none": None,
        "number": 3,
        "empty": [],
        "nested": [t, (t + 1, [2, None, "a"]), {"k": t * 2, 1: ()}],
        "dict": {"b": t, "a": [t, 1.5]},
        "named": [Point(t, [t, 1]), 2],
        "registered": (Pair(t, [1, Pair(2, t)]), t),
        "ordered": collections.OrderedDict(b=t, a=(1, t)),
        "default": collections.defaultdict(list, {"b": [t]}),
        "deque": collections.deque([t, [1]], maxlen=3),
        "subclass": [Listing([t, 1]), t],
        "size": [t.shape, t],
        "bare": [Bare, t],
        "bool": (True, [False, t]),
        "unhashed": [{1, 2}, t],
    }
    return trees[name] if name else trees


NAMES = list(tree("", torch.zeros(1)))


def taken_apart(name: str, t: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten(tree(name, t))
    told = spec.num_nodes, spec.num_leaves, spec.num_children, spec.is_leaf()
    return leaves, told, pytree.tree_unflatten(leaves, spec), t + 1


def leaves_alone(name: str, t: torch.Tensor) -> Any:
    return pytree.tree_leaves(tree(name, t)), t + 1


def stops_early(name: str, t: torch.Tensor) -> Any:
    def is_leaf(node: Any) -> bool:
        return isinstance(node, tuple)

    leaves, spec = pytree.tree_flatten(tree(name, t), is_leaf=is_leaf)
    return leaves, len(pytree.tree_leaves(tree(name, t), is_leaf)), spec.num_leaves, t + 1


def mapped(name: str, t: torch.Tensor) -> Any:
    made = pytree.tree_map(lambda x: (x, 1), tree(name, t))
    only = pytree.tree_map_only(torch.Tensor, lambda x: x * 2, tree(name, t))
    both = pytree.tree_map(lambda x, y: (x, y), tree(name, t), tree(name, t + 1))
    return made, only, both, pytree.tree_all(lambda x: x is not Ellipsis, tree(name, t))


def told_apart(name: str, t: torch.Tensor) -> Any:
    spec, other = (pytree.tree_structure(tree(n, t)) for n in (name, "nested"))
    return spec == other, spec == pytree.tree_structure(tree(name, t)), spec != other, t + 1


def same(left: Any, right: Any) -> bool:
    """Equal in types, order and values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, Pair):
        return same((left.left, left.right), (right.left, right.right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("f", [taken_apart, leaves_alone, stops_early, mapped, told_apart])
def test_trees_as_in_eager(f: Any, name: str) -> None:
    t = torch.arange(3.0)
    # The names of functions, as which named tuples count, hold addresses.
    whole = (f, name) != (told_apart, "named")
    found = dynamo.compile(f, backend="eager", fullgraph=whole)(name, t)
    assert same(found, f(name, t))


def test_errors_are_those_of_eager() -> None:
    def f(t: torch.Tensor, kind: int) -> Any:
        spec = pytree.tree_structure([t, (t, 1)])
        try:
            if kind == 0:
                pytree.tree_unflatten([t], spec)
            elif kind == 1:
                pytree.tree_unflatten([t], t)
            elif kind == 2:
                pytree.tree_map(lambda x, y: x, [t, 1], [t])
            elif kind == 3:
                pytree.tree_flatten()
            elif kind == 4:
                pytree.tree_leaves(t, leaf=1)
            elif kind == 5:
                pytree.tree_structure(t).unflatten([])
            else:
                pytree.tree_flatten([t], 3)
        except (TypeError, ValueError) as error:
            return type(error), str(error), t + 1
        return None

    for kind in range(7):
        expected = f(torch.ones(2), kind)
        dynamo.reset()
        found = dynamo.compile(f, backend="eager")(torch.ones(2), kind)
        assert found[:2] == expected[:2], kind


def test_endless_trees_raise() -> None:
    def f(t: torch.Tensor) -> Any:
        endless: list[Any] = [t]
        endless.append(endless)
        with contextlib.suppress(RecursionError):
            return pytree.tree_leaves(endless)
        return t + 1

    assert torch.equal(dynamo.compile(f, backend="eager")(torch.ones(2)), torch.ones(2) + 1)


def test_containers_keep_their_leaves() -> None:
    def f(given: Any, t: torch.Tensor) -> Any:
        leaves, spec = pytree.tree_flatten(given)
        leaves.append(t)
        copy = pytree.tree_unflatten(leaves[:-1], spec)
        copy[0].append(t + 1)
        return copy, leaves

    given = [[torch.ones(2)], 3]
    copy, leaves = dynamo.compile(f, backend="eager", fullgraph=True)(given, torch.ones(1))
    assert len(given[0]) == 1 and len(copy[0]) == 2 and len(leaves) == 3
    assert copy[0][0] is given[0][0] is leaves[0]


def test_kinds_registered_later_are_nodes() -> None:
    class Late:
        pass

    def f(given: Any, t: torch.Tensor) -> Any:
        return len(pytree.tree_leaves([given, t])), t + 1

    compiled = dynamo.compile(f, backend="eager")
    assert compiled(Late(), torch.ones(2))[0] == 2
    pytree.register_pytree_node(Late, lambda _: ([1, 2, 3], None), lambda parts, _: Late())
    try:
        assert compiled(Late(), torch.ones(2))[0] == 4
    finally:
        pytree._deregister_pytree_node(Late)


def test_other_kinds_at_later_calls() -> None:
    def f(given: Any) -> Any:
        return pytree.tree_map(lambda x: x + 1, given)

    compiled = dynamo.compile(f, backend="eager")
    t = torch.ones(2)
    for given in ([t], (t,), {"a": t}, [t, t], [[t]], [t, 3], t, Point(t, 1)):
        assert same(compiled(given), f(given))


def test_helpers_that_the_program_replaces_are_called() -> None:
    def f(t: torch.Tensor) -> Any:
        return pytree.tree_flatten([t, (t, 1)])[0], t + 1

    whole = pytree.tree_is_leaf
    with mock.patch.object(
        pytree, "tree_is_leaf", lambda tree, is_leaf=None: type(tree) is tuple or whole(tree)
    ):
        expected = f(torch.ones(2))
        assert same(dynamo.compile(f, backend="eager")(torch.ones(2)), expected)
    assert len(expected[0]) == 2


def test_the_code_of_torch_is_hardly_traced() -> None:
    traced: list[str] = []
    step = SymbolicFrame.step

    def counting(frame: SymbolicFrame) -> None:
        if frame.code.co_filename == pytree.__file__:
            traced.append(frame.code.co_name)
        step(frame)

    def f(t: torch.Tensor) -> Any:
        leaves, spec = pytree.tree_flatten([t, (t, {"a": t})])
        return pytree.tree_unflatten(leaves, spec), pytree.tree_leaves([t, (t,)])

    with mock.patch.object(SymbolicFrame, "step", counting):
        dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert not {"is_namedtuple_class", "_get_node_type", "__post_init__", "helper"} & set(traced)
    assert len(traced) < 600
