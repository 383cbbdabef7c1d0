"""What a pass must leave behind: fakes that say what each node gives for what the nodes before it give."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from inductor.fx_passes.fakes import fake_runner


def check_fakes(module: fx.GraphModule) -> None:
    """Runs each operator of ATen on the fakes of its inputs; sizes, strides and dtypes must be those of its own."""
    first = next(node.meta["val"] for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor))
    run = fake_runner(first)
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
        with torch.no_grad():
            found = run(node.target, *args, **kwargs)
        for again, kept in zip(tree_leaves(found), tree_leaves(node.meta["val"]), strict=True):
            assert form(again) == form(kept), f"{node.format_node()}: {form(again)} is kept as {form(kept)}"


def form(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    steps = [step for extent, step in zip(value.shape, value.stride(), strict=True) if extent != 1]
    return tuple(value.shape), steps, value.dtype
