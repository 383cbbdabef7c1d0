"""The private parts of torch that the sources lean on are those of `dynamo.base.torch_parts`."""

from __future__ import annotations

import ast
import importlib
import types

import pytest
import torch

from dynamo.base import torch_parts
from tests.test_layers import modules


class Names(ast.NodeVisitor):
    """Full names below torch that a file takes by import or attribute."""

    def __init__(self, tree: ast.Module) -> None:
        self.aliases: dict[str, str] = {}
        self.found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.aliases.update({alias.asname or "torch": alias.name if alias.asname else "torch"
                                     for alias in node.names if alias.name.split(".")[0] == "torch"})
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch":
                self.aliases.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        self.found.update(self.aliases.values())
        self.visit(tree)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        place: ast.expr = node
        while isinstance(place, ast.Attribute):
            parts.insert(0, place.attr)
            place = place.value
        if isinstance(place, ast.Name) and place.id in self.aliases:
            self.found.add(".".join([self.aliases[place.id], *parts]))
        else:
            self.generic_visit(node)


def private_part(name: str) -> str | None:
    """The name up to what is no module and to the first private word; None where none is private."""
    words, value, end = name.split("."), torch, 1
    while words[-1].startswith("__"):
        words.pop()
    private = [i for i, word in enumerate(words) if word.startswith("_") and not word.startswith("__")]
    if not private:
        return None
    while end < len(words) and isinstance(value, types.ModuleType):
        value, end = getattr(value, words[end], None), end + 1
    return None if isinstance(value, types.ModuleType) else ".".join(words[: max(end, private[0] + 1)])


def used() -> set[str]:
    for module in torch_parts.LATE_PARTS:
        importlib.import_module(module)
    assert not torch_parts.missing(torch_parts.LATE_PARTS)
    names = (name for path in modules() for name in Names(ast.parse(path.read_text())).found)
    late = "torch.distributed._functional_collectives"  # a module that some builds lack
    return {part for name in names if name != late and (part := private_part(name))}


def test_private_parts_of_torch_are_those_of_the_table() -> None:
    tables = (torch_parts.PARTS, torch_parts.LATE_PARTS, torch_parts.BUILD_PARTS)
    known, found = {name for table in tables for name in torch_parts.names(table)}, used()
    assert not found - known, "write these into the table"
    assert not known - found, "no longer used"


def test_a_missing_part_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_parts.check(torch.__version__)
    monkeypatch.delattr(torch.nn.Module, "_call_impl")
    with pytest.raises(ImportError, match=r"^dynamo-jit needs torch.nn.Module._call_impl, which torch 9.1 has not"):
        torch_parts.check("9.1")


def test_a_torch_that_is_newer_than_the_tested_ones_is_told_of_once() -> None:
    newest = ".".join(map(str, torch_parts.NEWEST_TESTED))
    for version, told in (("2.11.0+cpu", False), (f"{newest}.1", False), ("2.99.0a0+git", True)):
        with pytest.warns(UserWarning) if told else torch.no_grad() as found:
            torch_parts.check_version(version)
        assert not told or "is newer than" in str(found[0].message)  # type: ignore[index]
