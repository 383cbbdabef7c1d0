"""Which world of fake tensors a trace lives in.

The symbolic one is imported at its first use: that costs seconds, and static traces don't need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from dynamo.base.loading import collection_paused
from dynamo.shapes.fake import FakeWorld


def make_world(symbolic: bool) -> Any:
    """A new world; both kinds have the same face."""
    if not symbolic:
        return FakeWorld()
    with collection_paused():
        return importlib.import_module("dynamo.shapes.symbolic").SymbolicWorld()
