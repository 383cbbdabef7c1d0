"""What tests of several folders use: the arguments of the fuzzers' commands, contexts of
torch's state and of what the compiler says."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
from collections.abc import Iterator

import torch


def fuzz_parser(description: str | None, backend: str, seconds: float = float("inf")) -> argparse.ArgumentParser:
    """The options that all fuzzers have; each adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default=backend)
    parser.add_argument("--seconds", type=float, default=seconds, help="begin no program after that time")
    return parser


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
