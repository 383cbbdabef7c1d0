"""Keeps the garbage collector still while the package loads, and frames and graphs are compiled.

In: a block. Out: nothing. Exists because all allocate enough to start a full collection, which
walks every object of torch: 0.1 s, as much as importing all our modules or tracing a model takes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No automatic collection inside.

    By the threshold, not by `gc.disable()`: the switch stays the program's, whose other threads may
    turn it meanwhile. A threshold that is no longer ours at the end stays as well.
    """
    before, *others = gc.get_threshold()
    if before == 0:
        yield  # off, or paused by a thread that ends the pause itself
        return
    gc.set_threshold(0, *others)
    try:
        yield
    finally:
        if gc.get_threshold() == (0, *others):
            gc.set_threshold(before, *others)


def load_all(package: str, names: str) -> None:
    """Imports modules of a package in the order in which they are named."""
    for name in names.split():
        importlib.import_module(f"{package}.{name}")
