"""A captured graph as bytes for later processes, with operators of the program.

In: a captured graph. Out: bytes, and the module again. A trace has read of an operator of the
program what its schema says and the metadata of its results on fakes. So the next process compares
the schemas, runs these operators on the fakes again, and compares: code that has changed gives
another answer, or one that no trace has read.

A graph with symbolic sizes is written with the text that its key has (`graph_key.py`): the next
process looks for what was compiled of it before it makes any symbol.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from dynamo.aot.fakes import facts_of, is_fake, storage_key
from dynamo.aot.plain_graphs import module_of
from dynamo.base.graph_copies import copy_module
from dynamo.base.subclasses import is_wrapper_class
from dynamo.graph_operators.kernel_calls import NAMESPACE, Recipe
from dynamo.graph_operators.kernel_calls import operators as kernel_operators
from dynamo.store.content import Stale
from dynamo.store.records import Uncacheable
from inductor.cache.graph_key import SHOWN, TEXT, TRUSTED, text_of_symbolic
from inductor.cache.graph_rows import is_own, read_rows, write_rows


def write_captured(gm: fx.GraphModule) -> bytes:
    """Errors: those of `write_rows`."""
    gm = _without_made(gm)
    found = list(_nodes(gm))
    operators: list[Any] = [node.target for node in found]
    names = {operator.name().partition("::")[0] for operator in operators}
    if names & TRUSTED:
        raise Uncacheable(f"operators of {', '.join(sorted(names & TRUSTED))} are the program's")
    if found and any(map(_changes_state, gm.graph.nodes)):
        raise Uncacheable("modes change between operators of the program")
    schemas = {str(operator): _schemas(operator) for operator in operators}
    try:
        kernels = {str(operator): kernel_operators.recipe_of(operator) for operator in operators
                   if operator.namespace == NAMESPACE}  # fmt: skip
    except LookupError as why:
        raise Uncacheable(str(why)) from None
    text = None
    if any(type(node.meta.get(SHOWN)) is FakeTensor for node in gm.graph.nodes):
        if operators:  # they could assume something of sizes, which no guard says
            raise Uncacheable("operators of the program see symbolic sizes")
        text = text_of_symbolic(gm)
    return pickle.dumps((schemas, kernels, write_rows(gm, schemas.keys()), text), protocol=5)


def _without_made(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph without wrapper tensors that it makes and does not use: the trace has read of them
    what it needed, and no compiled code makes them."""
    if not any(map(_is_made_for_nothing, gm.graph.nodes)):
        return gm
    gm = copy_module(gm)
    for node in list(gm.graph.nodes):
        if _is_made_for_nothing(node):
            gm.graph.erase_node(node)
    return gm


def _is_made_for_nothing(node: fx.Node) -> bool:
    makes = node.op == "call_function" and isinstance(node.target, type)
    return makes and not node.users and is_wrapper_class(node.target)  # type: ignore[arg-type]


def read_captured(content: bytes) -> fx.GraphModule:
    """Errors: Stale where an operator of the program is another one now."""
    schemas, kernels, rows, text = pickle.loads(content)
    for name, recipe in kernels.items():
        _define_again(name, recipe)
    for name, known in schemas.items():
        namespace, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        if found is None or overload not in found.overloads():
            raise Stale(f"there is no operator {name} now")
        if _schemas(getattr(found, overload)) != known:
            raise Stale(f"{name} has other schemas now")
    module = module_of(read_rows(rows))
    if text is not None:
        module.meta[TEXT] = text
        return module
    for node in _nodes(module):
        _check(node)
    return module


def _define_again(name: str, recipe: Recipe) -> None:
    """Makes the operator of a Triton kernel. Errors: Stale."""
    try:
        made = kernel_operators.define_again(recipe)
    except LookupError as why:
        raise Stale(str(why)) from None
    if str(made) != name:
        raise Stale(f"the kernel of {name} writes other arguments, or is called like another one")


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Those of operators of the program."""
    return (
        node for node in gm.graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
        and not is_own(node.target)
    )


def _changes_state(node: fx.Node) -> bool:
    """Whether a function gives nothing: it enters a mode, say, and operators see that."""
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return node.op == "call_function" and not is_operator and node.meta.get(SHOWN) is None


def _schemas(function: torch._ops.OpOverload) -> list[str]:
    """Of all overloads, among which a call chooses."""
    packet = function.overloadpacket
    return sorted(str(getattr(packet, name)._schema) for name in packet.overloads())


def _check(node: fx.Node) -> None:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta[SHOWN])
    given = [storage_key(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if is_fake(leaf)]
    known = _facts(node.meta[SHOWN], given)
    try:
        now = _facts(node.target(*args, **kwargs), given)  # type: ignore[operator]
    except Exception as why:
        raise Stale(f"{node.target} raises {type(why).__name__} now") from None
    if now != known:
        raise Stale(f"{node.target} gives {now} now, not {known}")


def _facts(result: Any, given: Sequence[int]) -> list[str]:
    """What a trace sees of it. given: storages of the arguments."""
    leaves, form = pytree.tree_flatten(result)
    return [str(form), *_texts(leaves, given)]


def _texts(leaves: Iterable[Any], given: Sequence[int]) -> Iterator[str]:
    storages = list(given)
    for leaf in leaves:
        if not is_fake(leaf):
            yield repr(leaf)
            continue
        key = storage_key(leaf)
        if key not in storages:
            storages.append(key)
        facts, place = facts_of(leaf), storages.index(key)
        yield f"{facts!r} {facts.bits} {leaf.requires_grad} in {place}"
