"""Passes of the user's own over graphs: `options={"passes": {"post_grad_custom_pre_pass": f}}`.

Each takes the `torch.fx.Graph` and changes it in place. The places, by torch's names:
`pre_grad_custom_pass` (the captured graph), `joint_custom_pre_pass` and `joint_custom_post_pass`
(forward and backward in one, in training), `post_grad_custom_pre_pass` and
`post_grad_custom_post_pass` (functional ATen graphs, before and after our own passes).
A node that a pass adds to an ATen graph needs `meta["val"]`, what it returns. What a pass raises is
reported as a failed compile, and so is a graph that is no longer sound: it runs as captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from inductor.config import config
from inductor.fx_passes.checks import checked


def run_pass(place: str, module: fx.GraphModule) -> fx.GraphModule:
    """The module after the user's pass of that place, where there is one."""
    function: Callable[[fx.Graph], Any] | None = (config.passes or {}).get(place)
    if function is None:
        return module
    function(module.graph)
    module.graph.lint()
    module.recompile()
    # the captured graph has no fakes
    return module if place == "pre_grad_custom_pass" else checked(module, place)


def with_joint_passes(
    rewrite: Callable[[fx.GraphModule], fx.GraphModule],
) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """Our pass over the joint graph between the user's two."""

    def all_passes(module: fx.GraphModule) -> fx.GraphModule:
        module = rewrite(run_pass("joint_custom_pre_pass", module))
        return run_pass("joint_custom_post_pass", module)

    return all_passes
