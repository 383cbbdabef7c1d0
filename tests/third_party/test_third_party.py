"""The tests of other people's libraries, each inlined into a compiled function: what passes plainly
passes there. `make third-party` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lists import exclusions
from tests.third_party.runs import compare
from tests.third_party.sources import HERE, libraries, unpacked

TOY = '''
import os, unittest
import hypothesis, hypothesis.strategies as st, pytest, torch
from dynamo.symbolic.core.table import rule
inlined = torch.compiler.is_compiling

def broken(): pass
@rule([broken])
def rule_with_a_defect(tx): raise RuntimeError("a defect")
def test_that_the_compiler_fails_at(): broken()

@pytest.mark.parametrize("n", [0, 1])
def test_alike(n): assert n < 2
def test_fails_as_it_is(): assert False
def test_differs(): assert not inlined()
def test_skips():
    if inlined(): pytest.skip()
def test_ends():
    if inlined(): os._exit(3)

class TestMethods:
    @pytest.fixture
    def one(self): return 1
    def test_alike(self, one): assert one == 1
    def test_differs(self, one): assert not inlined()

class OfUnittest(unittest.TestCase):
    def test_alike(self): self.assertEqual(1, 1)
    def test_differs(self): self.assertFalse(inlined())
    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n): self.assertFalse(n == 1 and inlined())

@hypothesis.given(st.integers())
def test_drawn_alike(n): assert n == n
@hypothesis.given(n=st.integers())
def test_drawn_differs(n): assert not inlined()
'''


@pytest.mark.third_party  # it starts pytest three times, as these tests do
def test_runner(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "test_toy.py").write_text(TOY)
    report = compare(tmp_path / "source", ("test_toy.py",), tmp_path / "runs")
    different = {name.removeprefix("test_toy.py::"): text.partition(":")[0]
                 for name, text in report.different.items()}
    assert different == {
        "test_differs": "failed", "test_skips": "skipped", "test_ends": "ended the process",
        "TestMethods::test_differs": "failed", "OfUnittest::test_differs": "failed",
        "OfUnittest::test_parts": "failed", "test_drawn_differs": "failed",
        "test_that_the_compiler_fails_at": "failed",
    }
    assert report.passed == 5


def test_lists() -> None:
    assert set(exclusions(HERE)) <= set(libraries())
    assert list(libraries()) == sorted(libraries())


@pytest.mark.third_party
@pytest.mark.parametrize("name", libraries())
def test_library(name: str, tmp_path: Path) -> None:
    library = libraries()[name]
    report = compare(unpacked(library), library.tests, tmp_path, excluded_as=name)
    assert not report.different, "\n".join(
        f"{test}: {text}" for test, text in report.different.items())
    assert report.passed, "no test passes as it is"
