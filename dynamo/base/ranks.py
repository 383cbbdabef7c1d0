"""Compiled functions that a rank may not leave to eager: other ranks expect their collectives in
the form that the compiler has given them, as several that are sent as one.

In: numbers of calls of `compile` (`logs.Compile.region`). Out: whether one is among them; then the
limit of recompiles does not hold for it.

    >>> tie(-1)
    >>> is_tied(-1), is_tied(-2)
    (True, False)
"""

from __future__ import annotations

import sys

_tied: set[int] = set()


def are_many() -> bool:
    """True in a program of several processes that compute together."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return False
    return bool(module.get_world_size() > 1)


def tie(region: int) -> None:
    _tied.add(region)


def is_tied(region: int) -> bool:
    return region in _tied
