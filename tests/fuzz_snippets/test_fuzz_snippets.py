"""Programs out of snippets behave as plain ones: seeds of found bugs, and a fresh sample.

The long campaign is `python -m tests.fuzz_snippets --count 10000`.
"""

from __future__ import annotations

import gc

import pytest

from tests.fuzz_snippets.__main__ import check
from tests.fuzz_snippets.compare import observe
from tests.fuzz_snippets.compose import SNIPPETS, Program, generate
from tests.seeds import some

# Snippets, with the seeds of their places, that once showed a difference.
FOUND = (
    ("partial_mutated", 0, 0), ("defaults_mutated", 0, 0), ("module_getattr", 0, 0), ("meta_getattribute", 0, 0),
    ("bool_len_raise", 0, 0), ("views_in_place", 0, 0), ("comparison_chain", 4, 351), ("module_use", 0, 495),
    ("getattribute", 0, 581), ("autograd_calls", 0, 134), ("del_closure", 7, 1422),
)


@pytest.mark.parametrize(("name", "frame", "seed"), FOUND)
def test_found(name: str, frame: int, seed: int) -> None:
    program = Program(((name, frame),), seed)
    assert check(program, "eager") == "", program.source()


@pytest.mark.parametrize("seed", some(range(5000, 5005), 2))
def test_sample(seed: int) -> None:
    program = generate(seed)
    assert check(program, "eager") == "", program.source()


def test_each_snippet_returns() -> None:
    """An error in a snippet itself is one on which both sides agree."""
    gc.freeze()
    for name in SNIPPETS:
        outcome = observe(Program(((name, 0),), 0), lambda f: f, lambda: None, 1)[0][0]
        assert outcome[1][0] == ("str", "'returned'"), (name, outcome)
