"""What lies in the cache folder, as `dynamo.cache`.

    dynamo.cache.info()             # folder, bytes, entries of each kind
    dynamo.cache.prune(500 << 20)   # what was used longest ago goes, down to 500 MiB
    dynamo.cache.clear()

`dynamo.cache_info`, `prune_cache` and `clear_cache` are the same functions.
"""

from __future__ import annotations

import importlib
from typing import Any

FUNCTIONS = {"info": "cache_info", "prune": "prune_cache", "clear": "clear_cache"}
__all__ = ["clear", "info", "prune"]


def __getattr__(name: str) -> Any:
    if name not in FUNCTIONS:
        raise AttributeError(f"module 'dynamo.cache' has no attribute {name!r}")
    return getattr(importlib.import_module("inductor.runtime.folder"), FUNCTIONS[name])


def __dir__() -> list[str]:
    return [*globals(), *__all__]
