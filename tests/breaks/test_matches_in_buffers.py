"""What a regular expression finds in a buffer, whose content may change."""

from __future__ import annotations

import array
import re
from typing import Any

import pytest
import torch

import dynamo

MAKERS = {
    "bytes": lambda: b"[abab]", "bytearray": lambda: bytearray(b"[abab]"),
    "memoryview": lambda: memoryview(bytearray(b"[abab]")),
    "array": lambda: array.array("b", b"[abab]"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_is_read_in_each_call(kind: str) -> None:
    def f(x: torch.Tensor, found: re.Match[Any]) -> Any:
        return x + found.start(), bytes(found.group()), found.span()

    buffer: Any = MAKERS[kind]()
    found = re.search(rb"(.+)\1", buffer)
    assert found is not None
    compiled, x = dynamo.compile(f, backend="eager"), torch.ones(2)
    for item in b"cd":
        assert str(compiled(x, found)) == str(f(x, found))
        if kind != "bytes":
            buffer[1] = item


@pytest.mark.parametrize("kind", MAKERS)
def test_it_is_kept_over_breaks(kind: str) -> None:
    def f(x: torch.Tensor) -> Any:
        ends = []
        for buffer in (MAKERS[kind](), MAKERS["bytes"]()):
            found = re.search(rb"(.+)\1", buffer)
            dynamo.graph_break()
            x = x + found.end()  # type: ignore[union-attr]
            ends.append(bytes(found.group()))  # type: ignore[union-attr]
        return x, ends

    x = torch.ones(2)
    assert str(dynamo.compile(f, backend="eager")(x)) == str(f(x))
