"""How the new bytecode makes what `functools.cmp_to_key` gives."""

from __future__ import annotations

import functools
from typing import Any

from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.python.python_sources import ComparedKeyVar, KeyMakerVar


def compared_key(compare: Any, obj: Any) -> Any:
    """One key."""
    return functools.cmp_to_key(compare)(obj)


@rebuilds(KeyMakerVar)
def key_maker(rebuilder: Rebuilder, var: KeyMakerVar) -> None:
    rebuilder.call_const(functools.cmp_to_key, *var.args.children())


@rebuilds(ComparedKeyVar)
def key(rebuilder: Rebuilder, var: ComparedKeyVar) -> None:
    compare, obj = var.written["compare"], var.written["obj"]
    assert compare is not None and obj is not None
    rebuilder.call_const(compared_key, compare, obj)
