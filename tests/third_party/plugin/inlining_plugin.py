"""A plugin of pytest that runs each test inlined into a compiled function and tells what became of it.

The runner (`runs.py`) loads it in a process of its own and speaks through the environment: RESULTS is
the file to which the beginning and the end of each test are appended as lines of JSON (what began in a
process before is not run again); ONLY is a file of the tests to run, one a line (all without it);
INLINED is set for all but the tests as they are; after LIMIT seconds a test ends the process, with its
stack on standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from _pytest.unittest import TestCaseFunction

import dynamo

STDERR = os.dup(2)  # in whose place pytest later puts a file
EXAMPLES = 10  # of a test of hypothesis
TAIL = 1500  # characters of an error that are kept

INLINED = bool(os.environ.get("INLINED"))
LIMIT = float(os.environ.get("LIMIT", "60"))
OUTCOMES = "passed", "xfailed", "skipped", "failed"  # of the parts of a test the last counts
_told: dict[str, tuple[str, str]] = {}


def _tell(**facts: Any) -> None:
    with open(os.environ["RESULTS"], "a") as out:
        out.write(json.dumps(facts) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    dynamo.config.suppress_errors = False  # a test that ran in eager would pass
    logging.getLogger("dynamo").setLevel("ERROR")  # tests look at their output
    # What pytest itself does behind each part of a test is a lot to trace.
    TestCaseFunction.addSubTest = dynamo.disable(TestCaseFunction.addSubTest)
    with contextlib.suppress(ImportError):
        import hypothesis

        hypothesis.settings.register_profile(
            "third_party", max_examples=EXAMPLES, derandomize=True, database=None, deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck))
        hypothesis.settings.load_profile("third_party")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with open(os.environ["RESULTS"]) as file:
        begun = {json.loads(line).get("name") for line in file}
    wanted = {item.nodeid for item in items} - begun
    if only := os.environ.get("ONLY"):
        with open(only) as file:
            wanted &= set(file.read().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [item for item in items if item.nodeid in wanted]


def inlined(test: Callable[..., Any]) -> Callable[..., Any]:
    """The same test, called in a compiled function between two tensor operations."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = torch.ones(2)
        y = x + 1
        test(*args, **kwargs)
        return y * 2

    dynamo.reset()
    compiled = dynamo.compile(run, backend="eager")

    @functools.wraps(test)
    def check(*args: Any, **kwargs: Any) -> None:
        result = compiled(*args, **kwargs)
        assert torch.equal(result, torch.full((2,), 4.0)), result

    return check


@contextlib.contextmanager
def _replaced(item: pytest.Function) -> Iterator[None]:
    """Where hypothesis calls the test, what it calls is inlined and not hypothesis itself."""
    test = item.obj
    handle = getattr(test, "hypothesis", None)
    inner = getattr(handle, "inner_test", None)
    if inspect.iscoroutinefunction(inner or test):
        yield
    elif handle is not None and inner is not None:
        handle.inner_test = inlined(inner)
        try:
            yield
        finally:
            handle.inner_test = inner
    else:
        item.obj = inlined(test)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if INLINED and isinstance(item, pytest.Function):
            stack.enter_context(_replaced(item))
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=STDERR)
        stack.callback(faulthandler.cancel_dump_traceback_later)
        return (yield)


def pytest_runtest_logstart(nodeid: str) -> None:
    _told.pop(nodeid, None)
    _tell(what="begin", name=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed"
    old = _told.get(report.nodeid, ("passed", ""))
    text = str(report.longrepr)[-TAIL:] if outcome != "passed" else ""
    _told[report.nodeid] = max(old, (outcome, text), key=lambda pair: OUTCOMES.index(pair[0]))


def pytest_runtest_logfinish(nodeid: str) -> None:
    outcome, text = _told.get(nodeid, ("passed", ""))
    _tell(what="end", name=nodeid, outcome=outcome, text=text)


def pytest_sessionfinish() -> None:
    _tell(what="done")
