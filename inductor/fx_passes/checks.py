"""Whether a pass leaves fakes behind that say what each operator gives.

Later passes, lowering and the wrapper go by the fakes. A wrong one is noticed late, as strides that
a result has not or as an operator that refuses what it reads, or never. Where `is_on` is true each
operator is run on the fakes of its inputs after each pass, so that the pass is named.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from dynamo.aot.fakes import expression_of, facts_of, is_fake
from dynamo.base.errors import VerifyError
from dynamo.shapes.iteration import is_channels_last
from inductor.fx_passes.calls_with_fakes import first_fake
from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.layout_choice import CONVOLUTIONS, is_known

aten = torch.ops.aten
is_on = False  # for those who write passes, and in tests of them
FILM = 5  # dimensions
# What these give is known at a call only: a fake has new symbols each time.
DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def apply(
    rewrite: Callable[..., fx.GraphModule], module: fx.GraphModule, *more: Any
) -> fx.GraphModule:
    """What a pass makes of a graph. Errors: VerifyError for wrong fakes, where they are checked."""
    return checked(rewrite(module, *more), rewrite.__name__)


def checked(module: fx.GraphModule, name: str) -> fx.GraphModule:
    """The graph itself, checked if `is_on` says so. name: of the pass that it has gone through.
    Errors: as above."""
    if is_on:
        check_fakes(module, name)
    return module


def check_fakes(module: fx.GraphModule, name: str) -> None:
    """Raises a VerifyError for the first node whose fake has another dtype, device or size than
    what its operator gives, or other strides along more than one element. name: of the pass."""
    for node in module.graph.nodes:
        if not _is_checked(node):
            continue
        kept = node.meta.get("val")
        try:
            found = _run(node)
        except Exception as error:
            raise VerifyError(f"after {name}: {_text(node)}: {error}") from error
        if not _are_alike(node, found, kept):
            raise VerifyError(
                f"after {name}: {_text(node)}: expected {_described(found)}, "
                f"found {_described(kept)}")


def _is_checked(node: fx.Node) -> bool:
    """Not what gives nothing: writes are not repeated for that."""
    if node.op != "call_function" or node.meta.get("val", node) is None:
        return False
    if node.target is operator.getitem:
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not {*DATA_DEPENDENT} & {*target.tags}


def _run(node: fx.Node) -> Any:
    """What a node gives for the fakes of its inputs."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return fake_runner(first_fake(node))(node.target, *args, **kwargs)


def _are_alike(node: fx.Node, found: Any, kept: Any) -> bool:
    ours, theirs = tree_leaves(kept), tree_leaves(found)
    return len(ours) == len(theirs) and all(
        _form(one) == _form(other) or _lies_otherwise(node, one, other)
        for one, other in zip(ours, theirs, strict=True))


def _lies_otherwise(node: fx.Node, kept: Any, found: Any) -> bool:
    """What differs in its strides only, for a reason (`layout.py`). Films that lie channels last,
    as torch's meta kernels know of images only: where a library gives them otherwise, the wrapper
    copies. And a kernel's copy back to strides that are known at a call only."""
    if not is_fake(kept) or not is_fake(found):
        return False
    (size, _, *rest), (other_size, _, *other_rest) = _form(kept), _form(found)
    if size != other_size or rest != other_rest:
        return False
    if node.target is aten.clone.default:
        return not node.kwargs and not is_known(kept)
    facts = facts_of(kept)
    is_film = node.target in CONVOLUTIONS and len(size) == FILM
    return is_film and is_channels_last(facts.size, facts.stride)


def _form(value: Any) -> Any:
    """Equal for what may stand for each other."""
    if not is_fake(value):
        return str(value)
    facts = facts_of(value)
    size = [*map(expression_of, facts.size)]
    steps = [expression_of(step) for extent, step in zip(size, facts.stride, strict=True)
             if extent != 1]  # fmt: skip
    return size, steps, facts.dtype, facts.device


def _described(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_described, value))})"
    if not is_fake(value):
        return str(value)
    facts = facts_of(value)
    return f"{facts.dtype} of {[*facts.size]} with strides {[*facts.stride]} on {facts.device}"


def _text(node: fx.Node) -> str:
    return node.format_node() or node.name
