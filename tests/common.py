"""What tests of several folders use: contexts of torch's state and of what the compiler says."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import torch

from dynamo.base.config import config

T = TypeVar("T")


@contextlib.contextmanager
def new_cache(folder: Path) -> Iterator[None]:
    """An empty cache inside the block, where the compiler is known: looking at it runs it as often as a few builds do."""
    for kind in ("toolchain", "last_toolchain", "sources", "measured"):
        if (Path(config.cache_dir) / kind).is_dir():
            shutil.copytree(Path(config.cache_dir) / kind, folder / kind, dirs_exist_ok=True)
    with config.patch(cache_dir=str(folder)):
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def messages() -> Iterator[list[str]]:
    """What the compiler says by its logger inside of the block."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dynamo")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def told(pattern: str) -> Iterator[None]:
    """Inside, the compiler says one thing, which matches the pattern."""
    with messages() as found:
        yield
    assert len(found) == 1 and re.search(pattern, found[0]), found
