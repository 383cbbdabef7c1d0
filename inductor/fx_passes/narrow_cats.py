"""Parts are converted before they are joined.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where what joins
tensors, and is wanted in a narrower dtype alone, joins these: as backward of `x.float().chunk(3)`
gives. What is joined in memory is written there once, in half of the bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls

aten = torch.ops.aten
SAID = {"dtype", "layout", "device"}  # by a conversion that keeps all but the dtype


def convert_before_joining(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = False
    for node in module.graph.find_nodes(op="call_function", target=aten.cat.default):
        converted = _conversion(node)
        if converted is None:
            continue
        call, dtype = Calls(node), converted.kwargs["dtype"]
        parts: Any = node.args[0]
        narrow = [call(aten._to_copy.default, part, dtype=dtype) for part in parts]
        joined = call(aten.cat.default, narrow, *node.args[1:])
        if facts_of(joined.meta["val"]).stride != facts_of(converted.meta["val"]).stride:
            continue  # what is new is dead
        converted.replace_all_uses_with(joined)
        module.graph.erase_node(converted)
        module.graph.erase_node(node)
        found = True
    if found:
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()
    return module


def _conversion(node: fx.Node) -> fx.Node | None:
    """The one user of a join, if it does nothing but make its elements narrower, as they lie."""
    if len(node.users) != 1 or node.kwargs or not isinstance(node.args[0], list | tuple):
        return None
    (user,) = node.users
    if user.target is not aten._to_copy.default or not {"dtype"} <= {*user.kwargs} <= SAID:
        return None
    wide, narrow = facts_of(node.meta["val"]), facts_of(user.meta["val"])
    parts = [facts_of(part.meta["val"]) for part in node.args[0]]  # type: ignore[union-attr]
    plain = wide.stride == narrow.stride and wide.device == narrow.device
    plain = plain and all(part.dtype is wide.dtype for part in parts)
    both_float = wide.dtype.is_floating_point and narrow.dtype.is_floating_point
    return user if plain and both_float and narrow.dtype.itemsize < wide.dtype.itemsize else None
