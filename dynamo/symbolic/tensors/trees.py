"""Trees of containers (`torch.utils._pytree`): functions whose outcome the types at hand decide.

In: a call of one of these functions. Out: its result without its code being traced step by step,
or None: user-registered nodes, named tuples and all else that is not plain is traced. What the
code would have read of the registry is read (and guarded) here, too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import is_derived
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named
from dynamo.symbolic.python import functions
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.global_names import GlobalNames
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors.tensor import TensorVar

SPECS = (pytree.TreeSpec, pytree.LeafSpec)
CONTAINERS: dict[type[Var], type] = {ListVar: list, TupleVar: tuple, DictVar: dict}
LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str, types.NoneType))
DEEPEST = 30
# What these functions call, and the shortcuts do not.
CALLED = {name: vars(pytree)[name] for name in (
    "is_namedtuple_class", "_get_node_type", "tree_is_leaf", "tree_iter")}
IS_LEAF = pytree.TreeSpec.is_leaf


def are_own() -> bool:
    """False where the program has put something else in the place of a function."""
    own = vars(pytree)
    return pytree.TreeSpec.is_leaf is IS_LEAF and all(
        own.get(name) is function for name, function in CALLED.items())


def shortens(function: Any) -> Callable[[Any], Any]:
    """Registers what may answer a call in place of the function's own code."""

    def register(handler: Any) -> Any:
        def answer(tx: Frame, *args: Var, **kwargs: Var) -> Var | None:
            return handler(tx, *args, **kwargs) if are_own() else None  # type: ignore[no-any-return]

        functions.shortens(function)(answer)
        return handler

    return register


@shortens(pytree.is_namedtuple_class)
def is_named(tx: Frame, cls: Var) -> Var | None:
    return ConstVar(False) if isinstance(cls, ClassVar) and is_unnamed(cls.cls) else None


@shortens(pytree._get_node_type)
def node_type(tx: Frame, tree: Var) -> Var | None:
    kind = tx.trace.call(tx, type, tree)
    return kind if isinstance(kind, ClassVar) and is_unnamed(kind.cls) else None


def is_unnamed(cls: type) -> bool:
    return cls is tuple or not is_derived(cls, tuple)


# -- descriptions of trees -------------------------------------------------------------------------


@shortens(pytree.TreeSpec.is_leaf)
def is_leaf(tx: Frame, spec: Var) -> Var | None:
    found = counts(tx, spec)
    return None if found is None else ConstVar(found == (1, 1))


@shortens(pytree.TreeSpec.unflatten)
def unflatten_leaf(tx: Frame, spec: Var, leaves: Var) -> Var | None:
    """A leaf is what it was; containers of leaves are built by the code of the class."""
    if type(leaves) not in (ListVar, TupleVar) or counts(tx, spec) != (1, 1):
        return None
    items: list[Var] = leaves.items  # type: ignore[attr-defined]
    return items[0] if len(items) == 1 else None


@shortens(pytree.TreeSpec.__post_init__)
def count(tx: Frame, spec: Var) -> Var | None:
    """Counts the nodes of a new description."""
    if not is_spec(spec) or isinstance(spec.get_attr(tx, "type"), ConstVar):
        return None
    children = spec.get_attr(tx, "_children")
    if type(children) is not ListVar:
        return None
    found = [counts(tx, child) for child in children.items]
    known = [pair for pair in found if pair is not None]
    if len(known) != len(found):
        return None
    numbers = 1 + sum(n for n, _ in known), sum(n for _, n in known), len(known)
    names = "num_nodes", "num_leaves", "num_children"
    for name, number in zip(names, numbers, strict=True):
        tx.trace.call(tx, object.__setattr__, spec, ConstVar(name), ConstVar(number))
    return ConstVar(None)


def is_spec(var: Var) -> bool:
    return isinstance(var, ObjectVar) and var.python_type() in SPECS


def counts(tx: Frame, spec: Var) -> tuple[int, int] | None:
    """The numbers of nodes and of leaves that a description tells of."""
    if not is_spec(spec):
        return None
    nodes, leaves = spec.get_attr(tx, "num_nodes"), spec.get_attr(tx, "num_leaves")
    if not isinstance(nodes, ConstVar) or not isinstance(leaves, ConstVar):
        return None
    found = nodes.value, leaves.value
    return found if type(found[0]) is int and type(found[1]) is int else None


# -- taking trees apart ----------------------------------------------------------------------------


@shortens(pytree.tree_flatten)
def flatten(tx: Frame, tree: Var, is_leaf: Var | None = None) -> Var | None:
    names = parts(tx, "SUPPORTED_NODES", "_LEAF_SPEC", "TreeSpec")
    if names is None or not is_absent(is_leaf) or not is_plain_tree(tree, DEEPEST):
        return None
    registry, leaf, cls = names
    leaves: list[Var] = []

    def describe(node: Var) -> Var:
        taken = take_apart(tx, registry, node)
        if taken is None:
            leaves.append(node)
            return leaf
        kind, children, context = taken
        return tx.call(cls, [kind, context, ListVar(map(describe, children))], {})

    spec = describe(tree)
    return TupleVar([ListVar(leaves), spec])


@shortens(pytree.tree_leaves)
def leaves_of(tx: Frame, tree: Var, is_leaf: Var | None = None) -> Var | None:
    names = parts(tx, "SUPPORTED_NODES")
    if names is None or not is_absent(is_leaf) or not is_plain_tree(tree, DEEPEST):
        return None
    leaves: list[Var] = []

    def collect(node: Var) -> None:
        taken = take_apart(tx, names[0], node)
        if taken is None:
            leaves.append(node)
        else:
            for child in taken[1]:
                collect(child)

    collect(tree)
    return ListVar(leaves)


def take_apart(
    tx: Frame, registry: Var, node: Var
) -> tuple[Var, Iterable[Var], Var] | None:
    """The type of a node, its children and its context; None for a leaf."""
    assert isinstance(registry, DictVar)
    kind = tx.trace.call(tx, type, node)
    row = registry.lookup(tx, kind)
    if row is None:
        return None
    taken = tx.call(row.get_attr(tx, "flatten_fn"), [node], {})
    children, context = taken.items  # type: ignore[attr-defined]
    return kind, children.items, context


def parts(tx: Frame, *names: str) -> list[Var] | None:
    """Globals of the module, None where the program has written one of them."""
    own, trace = vars(pytree), tx.trace
    if any(trace.effects.written_global(own, name)[0] for name in names):
        return None
    place = trace.state(GlobalNames).source_of
    found = [wrap_named(trace, own[name], place(own, name)) for name in names]
    rows = [own["SUPPORTED_NODES"].get(kind) for kind in CONTAINERS.values()]
    known = all(row is not None and row.flatten_fn in FLATTEN for row in rows)
    return found if known and isinstance(found[0], DictVar) else None


def is_absent(var: Var | None) -> bool:
    return var is None or (isinstance(var, ConstVar) and var.value is None)


def is_plain_tree(node: Var, depth: int) -> bool:
    """True where all nodes are lists, tuples and dicts, and all leaves tensors or plain values."""
    if depth == 0:
        return False
    kind = node.python_type()
    if CONTAINERS.get(type(node)) is not kind:
        return kind in LEAVES and isinstance(node, TensorVar | ConstVar)
    if isinstance(node, DictVar):
        children: Iterable[Var] = [value for _, value in node.entries.values()]
    else:
        children = node.items  # type: ignore[attr-defined]
    return all(is_plain_tree(child, depth - 1) for child in children)


FLATTEN = (pytree._list_flatten, pytree._tuple_flatten, pytree._dict_flatten)
