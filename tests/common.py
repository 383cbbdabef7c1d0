"""What tests of several folders use: the fuzzers' commands, contexts of torch's state and of what the compiler says."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from dynamo.base.config import config

T = TypeVar("T")


def fuzz_parser(description: str | None, backend: str, seconds: float = float("inf")) -> argparse.ArgumentParser:
    """The options that all fuzzers have; each adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default=backend)
    parser.add_argument("--seconds", type=float, default=seconds, help="begin no program after that time")
    return parser


def told_of_check(difference: Callable[[], str]) -> str:
    """What a comparison of eager and compiled tells; an error of it is a difference, too."""
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return difference()
        except Exception as error:
            return f"the check raises {type(error).__name__}: {str(error)[:500]}"


def fuzz_for_seconds(
    description: str | None, backend: str, generate: Callable[[int, str], T], check: Callable[[T, str], str],
    smaller: Callable[[T], Iterable[T]],
) -> int:
    """The command of a fuzzer that takes seed after seed until its time is over, and prints each difference shrunk.

    generate: the program of a seed, for a backend; check: tells how it differs, "" where it does not.
    """
    parser = fuzz_parser(description, backend, 60)
    parser.add_argument("--one", action="store_true", help="only this seed")
    options = parser.parse_args()
    seed, wrong, end = options.seed, 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        program = generate(seed, options.backend)
        if options.one or check(program, options.backend):
            wrong += 1
            while found := next((p for p in smaller(program) if check(p, options.backend)), None):
                program = found
            print(f"=== seed {seed}\n{program}\n{check(program, options.backend)}\n", flush=True)
        seed += 1
        if options.one:
            return 0
    print(f"{seed - options.seed} programs, {wrong} differ")
    return 1 if wrong else 0


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
