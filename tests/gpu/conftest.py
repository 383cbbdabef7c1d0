"""All tests of this folder need a GPU; each starts and ends without compiled code."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynamo


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    part, parts = map(int, os.environ.get("TEST_PART", "0/1").split("/"))
    mine, others = [], []
    for item in items:
        if not str(item.path).startswith(here):
            mine.append(item)
            continue
        item.add_marker(pytest.mark.gpu)
        (mine if zlib.crc32(item.nodeid.encode()) % parts == part else others).append(item)
    items[:] = mine
    config.hook.pytest_deselected(items=others)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line for `tests.gpu.run`, which has results of tests even if the rest is stopped."""
    path = os.environ.get("TEST_RESULTS")
    if path and (report.when == "call" or report.outcome != "passed"):
        row = {"name": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
        with open(path, "a") as file:
            file.write(json.dumps(row | {"text": report.longreprtext[-1500:]}) + "\n")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    dynamo.reset()
    yield
    dynamo.reset()
