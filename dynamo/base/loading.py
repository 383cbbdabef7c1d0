"""Keeps the garbage collector still while the package loads and while frames are traced.

In: a block. Out: nothing. Exists because both allocate enough to start a full collection, which
walks every object of torch: 0.1 s, as much as importing all our modules or tracing a model takes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No automatic collection inside; a collector that was off stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
