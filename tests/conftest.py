"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.parametrize import rotate_products
from tests.seeds import TEST_SEED, start_draws

GPU = Path(__file__).with_name("gpu")
# Objects that are made before garbage is looked for, and how often older ones are looked at. With Python's own numbers
# the collector takes a tenth of the CPU time of these tests: what they have compiled lives on.
GARBAGE = (20_000, 20, 50)
# Most tests that say `fullgraph=True` ask for a graph without breaks, whatever the backend does with it.
os.environ.setdefault("DYNAMO_FULLGRAPH_COMPILES", "0")
# Most tests look at what a compile does, which a graph of an earlier run would leave out.
os.environ.setdefault("DYNAMO_GRAPH_CACHE", "0")
os.environ.setdefault("DYNAMO_CAPTURE_CACHE", "0")
# Threads of OpenMP that wait for work take no CPU time from the other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A folder whose tests are all deselected is not read: a thousand tests take seconds in each worker."""
    return True if collection_path == GPU and "not gpu" in config.getoption("markexpr") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests that are being collected are no garbage, nor are they later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GARBAGE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rotate_products(items)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """What a module draws when it is imported does not depend on those that were before."""
    if isinstance(collector, pytest.Module):
        start_draws(collector.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    start_draws(item.nodeid)


@pytest.fixture(autouse=True)
def tests_share_no_entries() -> None:
    """What a test compiles was not compiled by one before, be it the same function; and what was not compiled by one
    before is not counted."""
    if "dynamo.frames.sharing" in sys.modules:
        sys.modules["dynamo.frames.sharing"].regions.separate()
        sys.modules["dynamo.base.counters"].counters["not_compiled"].clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Draws", f"TEST_SEED={TEST_SEED} draws the same again."))
    return report


@pytest.fixture(autouse=True, scope="module")
def collections_look_at_new_objects() -> None:
    """A collection, be it a test's own, does not walk what the modules before have left: in a long run that is a second
    for each."""
    gc.collect()
    gc.freeze()
