"""Recipes with symbolic sizes: all that `__tensor_flatten__` says is as a call has it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from dynamo.aot.records import Unsupported
from dynamo.aot.symbolic_recipes import is_symbolic_value, reader_of
from dynamo.base.subclasses import Recipe
from dynamo.shapes.symbolic import SymbolicWorld


@dataclasses.dataclass
class Kind:
    size: Any


class Hidden:
    def __init__(self, size: Any) -> None:
        self.size = size


def test_what_a_call_has() -> None:
    size = SymbolicWorld().size("size", 5)
    known = Kind(3)
    context = (torch.Size([size, 2]), Kind(size + 1), {"many": [size * 3]}, known, int)
    recipe = Recipe(torch.Tensor, ("a",), (None,), context, (size, 8), (8, 1), False)
    read = reader_of(recipe, {size.node.expr: (0, 0)})
    assert read is not None and is_symbolic_value(recipe) and not is_symbolic_value(known)
    for rows in (7, 9):
        found = read([torch.empty(rows, 8)])
        wanted = (torch.Size([rows, 2]), Kind(rows + 1), {"many": [rows * 3]}, known, int)
        assert found == dataclasses.replace(recipe, context=wanted, size=(rows, 8))
        assert found.context[3] is known
    assert reader_of(dataclasses.replace(recipe, context=None, size=(5, 8)), {}) is None
    for value, places in ((recipe, {}), (Hidden(size), {size.node.expr: (0, 0)})):
        with pytest.raises(Unsupported):
            reader_of(value, places)  # type: ignore[arg-type]
