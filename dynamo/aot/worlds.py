"""Which world of fakes a program is captured in.

The symbolic one is imported at its first use: that costs seconds, and static graphs don't need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import fx

from dynamo.aot.reference import ReferenceWorld


def make_reference_world(gm: fx.GraphModule, examples: list[Any], symbolic: bool) -> Any:
    """A new world for one capture; both kinds have the same face."""
    if not symbolic:
        return ReferenceWorld()
    module = importlib.import_module("dynamo.aot.symbolic")
    return module.SymbolicReferenceWorld(gm, examples)
