"""Whose frames are left alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.export import ShapesCollection
from torch.fx import GraphModule, Tracer
from torch.fx.graph import PythonCode

from dynamo.frames.libraries import is_whole, library_of


@dataclass
class Ours:
    number: int = 0


def ours() -> None: ...


sympy = pytest.importorskip("sympy")


@pytest.mark.parametrize("function,whole,left", [
    (ours, False, False),
    (Ours.__init__, False, False),
    (torch.nn.Linear.forward, False, False),
    (torch.nn.Linear.__init__, False, True),
    (torch.nn.Module._call_impl, False, False),
    (torch.nn.Module.named_modules, False, True),
    (torch.nn.Module.state_dict, False, True),
    (GraphModule.__init__, False, True),
    (torch.vmap, False, True),
    (sympy.Basic.xreplace, False, True),
    (PythonCode.__init__, False, True),
    (scan, True, True),
    (ShapesCollection.__init__, True, True),
    (Tracer.trace, True, True),
    (torch.utils.checkpoint.checkpoint.__wrapped__, True, True),
])  # fmt: skip
def test_library_of(function: Any, whole: bool, left: bool) -> None:
    assert isinstance(function, FunctionType)
    assert is_whole(function.__code__) is whole
    assert (library_of(function.__code__, function.__globals__) is not None) is left
