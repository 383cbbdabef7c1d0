"""Calls that take their arguments in a list and empty it, so that each tensor dies at its last use.

Who calls `f(*args)` holds the arguments until `f` returns. A compiled graph that can free them
earlier has an attribute `of_list`: the same function of one list, which it empties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.fx.graph import _BoxedCodeGen

from dynamo.aot.recipes import noted

Callee = Callable[..., Any]


def call_with(compiled: Callee, given: list[Any]) -> Any:
    """The result of the call; the list is empty afterwards, or may be.

    >>> call_with(max, [1, 2])
    2
    """
    of_list = getattr(compiled, "of_list", None)
    return compiled(*given) if of_list is None else of_list(given)


def with_list(call: Callee, of_list: Callable[[list[Any]], Any] | None) -> Callee:
    """The call with that attribute; without one where it is None."""
    if of_list is not None:
        call.of_list = of_list  # type: ignore[attr-defined]
    return call


def picking_arguments(compiled: Callee, places: Sequence[int]) -> Callee:
    """The callable of more arguments, of which it takes those at these places."""
    of_list = getattr(compiled, "of_list", None)

    def chosen(given: list[Any]) -> Any:
        taken = [given[at] for at in places]
        given.clear()
        return of_list(taken)  # type: ignore[misc]

    def call(*args: Any) -> Any:
        return compiled(*[args[at] for at in places])

    noted(call, picking_arguments, compiled, places)
    return with_list(call, None if of_list is None else chosen)


def run_as_it_is(module: fx.GraphModule) -> Callee:
    """The module's own code as such a callable."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    of_list = module.forward
    return with_list(lambda *args: of_list(list(args)), of_list)
