"""Every break has a row: a number, a sentence, a hint."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dynamo.base.breaks import REASONS, describe
from dynamo.base.errors import Break

ROOT = Path(__file__).parents[2]


def codes() -> Iterator[tuple[str, str]]:
    """(place, code) of each `Break("code", ...)` in the sources."""
    for path in [*ROOT.glob("dynamo/**/*.py"), *ROOT.glob("inductor/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Break" and node.args:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", code.value


def test_all_codes_are_registered() -> None:
    found = list(codes())
    assert len(found) > 50  # the search itself works
    assert not [(place, code) for place, code in found if code not in REASONS]


def test_numbers_are_unique_and_hints_are_given() -> None:
    assert len({row.number for row in REASONS.values()}) == len(REASONS)
    for row in REASONS.values():
        assert row.sentence and row.hint.endswith("."), row


def test_description_starts_with_the_users_line() -> None:
    text = describe(Break("item", "float"), "model.py:3 in forward", "x = y.item()")
    first, second, third, fourth = text.splitlines()
    assert first == "model.py:3 in forward"
    assert second.strip() == "x = y.item()"
    assert third.endswith(f": float. [{REASONS['item'].number}]")
    assert fourth.startswith("  What to do: ")
