"""What tests of several folders use: the arguments of the fuzzers' commands, contexts of
torch's state and of what the compiler says."""

from __future__ import annotations

import argparse
import contextlib
import re
import unittest
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
def told(pattern: str) -> Iterator[None]:
    """Inside, the compiler says one thing by its logger, which matches the pattern."""
    with unittest.TestCase().assertLogs("dynamo", "WARNING") as seen:
        yield
    (record,) = seen.records
    assert re.search(pattern, record.getMessage()), record.getMessage()
