"""What lies in the cache folder, as `dynamo.cache`.

    dynamo.cache.info()             # folder, bytes, entries of each kind
    dynamo.cache.prune(500 << 20)   # what was used longest ago goes, down to 500 MiB
    dynamo.cache.clear()

`dynamo.cache_info`, `prune_cache` and `clear_cache` do the same.
"""

from __future__ import annotations

from dynamo.store.folder import cache_info as info
from dynamo.store.folder import clear_cache as clear
from dynamo.store.folder import prune_cache as prune

__all__ = ["clear", "info", "prune"]
