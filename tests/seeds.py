"""What tests draw: the same in each run by default, something else in each run of `make test-long`.

Python's, NumPy's and torch's generators start each module and each test from its name and TEST_SEED, a number in the
environment (0 where there is none). A test that fails says TEST_SEED.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from tests.parametrize import few

TEST_SEED = int(os.environ.get("TEST_SEED") or 0)


def start_draws(name: str) -> None:
    """Seeds the generators that tests share; name: of the test or module."""
    seed = zlib.crc32(f"{TEST_SEED} {name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def drawn(seeds: Iterable[int]) -> list[int]:
    """Seeds of a search: these, or as many others that depend on TEST_SEED."""
    return [seed + TEST_SEED for seed in seeds]


def some(seeds: Iterable[int], count: int) -> list[Any]:
    """Rows of a parameter: this many of the seeds as they are by default, and the others as long ones, drawn."""
    rows = few(seeds, count)
    return [row if not row.marks else few(drawn(row.values), 0)[0] for row in rows]
