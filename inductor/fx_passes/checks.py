"""Whether a pass leaves fakes behind that say what each operator gives.

Later passes, lowering and the wrapper go by the fakes. A wrong one is noticed late, as strides that
a result has not or as an operator that refuses what it reads, or never. With `config.check_fakes`
each operator is run on the fakes of its inputs after each pass, so that the pass is named.
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
from inductor.config import config
from inductor.fx_passes.calls_with_fakes import first_fake
from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.layout_choice import CONVOLUTIONS

FILM = 5  # dimensions
# What these give is known at a call only: a fake has new symbols each time.
DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def apply(
    rewrite: Callable[..., fx.GraphModule], module: fx.GraphModule, *more: Any
) -> fx.GraphModule:
    """What a pass makes of a graph. Errors: VerifyError for wrong fakes, where they are checked."""
    module = rewrite(module, *more)
    if config.check_fakes:
        check_fakes(module, rewrite.__name__)
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
        _form(one) == _form(other)
        or node.target in CONVOLUTIONS and _is_film_laid_out(one, other)
        for one, other in zip(ours, theirs, strict=True))


def _is_film_laid_out(kept: Any, found: Any) -> bool:
    """Whether a film lies channels last of which torch's meta kernels say that it does not: they
    know of images only (`layout.py`). Where a library gives it otherwise, the wrapper copies."""
    if not is_fake(kept) or not is_fake(found) or kept.dim() != FILM:
        return False
    one, other = facts_of(kept), facts_of(found)
    same = (one.size, one.dtype, one.device) == (other.size, other.dtype, other.device)
    return same and is_channels_last(one.size, one.stride)


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
