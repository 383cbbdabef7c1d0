"""What lies in the cache folder, as `dynamo.cache`.

    dynamo.cache.info()             # folder, bytes, entries of each kind
    dynamo.cache.prune(500 << 20)   # what was used longest ago goes, down to 500 MiB
    dynamo.cache.clear()

`dynamo.cache_info`, `prune_cache` and `clear_cache` do the same.
"""

from __future__ import annotations

import importlib
from typing import Any


def info() -> Any:
    """Its path, the bytes of all files, and how many entries there are of each kind."""
    return _folder().cache_info()


def prune(size: int) -> int:
    """Removes what was used longest ago, until `size` bytes are left; how many bytes went."""
    return _folder().prune_cache(size)  # type: ignore[no-any-return]


def clear() -> None:
    """Removes all entries."""
    _folder().clear_cache()


def _folder() -> Any:
    return importlib.import_module("dynamo.store.folder")
