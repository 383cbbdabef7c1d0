"""Runs each method of one module of CPython's tests twice: as it is, and inlined into a compiled
function.

    python -m tests.cpython.inlined test_dict [--start N] [--results FILE] [--all] [--only TEXT]

What happens goes to FILE (standard output without it), a line of JSON each: a process that hangs or
dies tells by its last line where. --all: exclusions count for nothing; --only: part of a name.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TextIO

import torch

import dynamo
from tests.lists import is_excluded

HERE = Path(__file__).parent
TAIL = 1500  # characters of an error that are kept


def library_tests() -> str | None:
    """The folder of the interpreter's `test` package; None where it comes without it."""
    spec = PathFinder.find_spec("test.support", [os.path.join(os.path.dirname(os.__file__), "test")])
    return None if spec is None else os.path.dirname(os.path.dirname(str(spec.origin)))


def inlined(case: unittest.TestCase, passes: Callable[[], bool]) -> unittest.TestCase:
    """The same test, whose method is called in a compiled function; skipped where it does not pass
    as it is."""
    name = case._testMethodName
    method = getattr(type(case), name)

    def run(self: unittest.TestCase) -> torch.Tensor:
        x = torch.ones(2)
        y = x + 1
        method(self)
        return y * 2

    def check(self: unittest.TestCase) -> None:
        if not passes():
            self.skipTest("does not pass as it is")
        dynamo.reset()
        result = dynamo.compile(run, backend="eager")(self)
        assert torch.equal(result, torch.full((2,), 4.0)), result

    made = type(case)(name)
    check.__name__ = name
    check.__dict__.update(method.__dict__)  # unittest's marks: expected failures
    made.__dict__[name] = types.MethodType(check, made)
    return made


class Recorder(unittest.TestResult):
    """Tells what begins and how it ends."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.known: dict[int, tuple[int, str, str]] = {}
        self.passed: set[int] = set()
        self._before = self._counts()

    def note(self, test: unittest.TestCase, place: int, kind: str) -> None:
        name = f"{type(test).__name__}.{test._testMethodName}"
        self.known[id(test)] = place, name, kind

    def tell(self, **facts: Any) -> None:
        self.out.write(json.dumps(facts) + "\n")
        self.out.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        place, name, kind = self.known[id(test)]
        self.tell(what="begin", place=place, name=name, kind=kind)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        place, name, kind = self.known[id(test)]
        bad, skipped = (new - old for new, old in zip(self._counts(), self._before, strict=True))
        if not bad and not skipped:
            self.passed.add(id(test))
        texts = [text for case, text in self.failures + self.errors if case is test]
        text = texts[-1][-TAIL:] if texts else "it was expected to fail, or a part of it failed"
        self.tell(what="end", place=place, name=name, kind=kind,
                  outcome="fail" if bad else "skip" if skipped else "pass", text=bad and text)
        self._before = self._counts()  # 3.12 does not start what a decorator skips

    def _counts(self) -> tuple[int, int]:
        bad = len(self.failures) + len(self.errors) + len(self.unexpectedSuccesses)
        return bad, len(self.skipped)


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def can_be_inlined(test: unittest.TestCase) -> bool:
    method = getattr(type(test), getattr(test, "_testMethodName", ""), None)
    return (
        method is not None and type(test).__module__ != "doctest"
        and not inspect.iscoroutinefunction(method)
        and isinstance(getattr(test, "__dict__", None), dict)
    )


def selected(module: str, arguments: argparse.Namespace, recorder: Recorder) -> unittest.TestSuite:
    suite = unittest.TestSuite()
    loaded = flat(unittest.defaultTestLoader.loadTestsFromModule(
        importlib.import_module(f"test.{module}")))
    for place, test in enumerate(filter(can_be_inlined, loaded)):
        name = f"{type(test).__name__}.{test._testMethodName}"
        if place < arguments.start or arguments.only not in name or (
            not arguments.all and is_excluded(module, name, HERE)
        ):
            continue
        passes = functools.partial(lambda key: key in recorder.passed, id(test))
        recorder.note(test, place, "plain")
        recorder.note(again := inlined(test, passes), place, "compiled")
        suite.addTests([test, again])
    return suite


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--results")
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dynamo.config.suppress_errors = False  # a test that ran in eager would pass
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        out = open(arguments.results, "a") if arguments.results else os.fdopen(os.dup(1), "w")
        recorder = Recorder(stack.enter_context(out))
        # Behind a link, the tests are code of the program and not the library's.
        os.symlink(str(library_tests()), os.path.join(folder, "test"))
        sys.path.insert(0, folder)
        os.chdir(folder)
        try:
            support = importlib.import_module("test.support")
            support.use_resources = ["subprocess"]
            suite = selected(arguments.module, arguments, recorder)
        except (unittest.SkipTest, ImportError) as error:
            recorder.tell(what="skip", text=str(error))
            return
        recorder.tell(what="start")
        suite.run(recorder)
        recorder.tell(what="done")
        os.chdir(os.sep)


if __name__ == "__main__":
    main()
