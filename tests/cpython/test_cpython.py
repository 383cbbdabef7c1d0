"""CPython's own tests, each inlined into a compiled function: what passes plainly passes there.

The tests are those of the running interpreter; `make cpython` runs them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpython.inlined import library_tests
from tests.cpython.watched import run_module
from tests.lists import exclusions, lines

HERE = Path(__file__).parent
MODULES = lines("modules.txt", HERE)
# A small one, for every day.
FAST = ["test_with"]


def check(module: str, folder: Path) -> None:
    tests = library_tests()
    if tests is None:
        pytest.skip("this Python comes without its tests (the package `test`)")
    report = run_module(module, folder)
    if report.skipped:
        pytest.skip(report.skipped)
    assert not report.different, "\n".join(
        f"{module} {name}: {text}" for name, text in report.different.items())
    failures = report.plain_failures  # of some, which need what this machine lacks; not of most
    assert len(failures) <= report.passed, f"most of {module} fails as it is: {failures}"
    if not report.passed:
        pytest.skip("the module's own tests skip all of its methods here")


@pytest.mark.parametrize("module", FAST)
def test_fast_module(module: str, tmp_path: Path) -> None:
    check(module, tmp_path)


@pytest.mark.cpython
@pytest.mark.parametrize("module", [name for name in MODULES if name not in FAST])
def test_module(module: str, tmp_path: Path) -> None:
    check(module, tmp_path)


def test_exclusions_are_of_modules_that_run() -> None:
    assert set(exclusions(HERE)) <= set(MODULES)
    assert MODULES == sorted(set(MODULES)) and set(FAST) <= set(MODULES)
