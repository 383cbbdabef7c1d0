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
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Break(" in text else ():
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


def test_each_code_has_its_paragraph() -> None:
    text = (Path(__file__).parents[2] / "docs" / "graph_breaks.md").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    assert list(sections) == [f"{row.number} `{code}`" for code, row in REASONS.items()]
    for code, row in REASONS.items():
        part = sections[f"{row.number} `{code}`"]
        assert f"**What happens:** {row.sentence}." in part, code
        assert f"**What to do:** {row.hint}" in part, code


def test_nothing_is_fine_where_a_break_is_an_error() -> None:
    for code in REASONS:
        told = describe(Break(code), "model.py:3 in f", "y = g(x)", strict=True)
        assert "othing is wrong" not in told and "What to do: " in told and not told.endswith("What to do: "), told


def test_numbers_name_item() -> None:
    for code, detail in [("hash_unknown", "a float that only the running program knows"), ("unknown_number", "")]:
        assert ".item()" in describe(Break(code, detail), "model.py:3 in f")
    assert ".item()" not in describe(Break("hash_unknown", "a file"), "model.py:3 in f")
