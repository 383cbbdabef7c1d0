"""Copies of graph modules, without what torch says about its own way to make them."""

from __future__ import annotations

import copy
import warnings
from typing import TypeVar

T = TypeVar("T")


def copied(module: T) -> T:
    """`copy.deepcopy`. The records of pytree in an exported graph are of a class that torch itself
    calls deprecated where they are copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        return copy.deepcopy(module)
