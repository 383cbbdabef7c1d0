"""Operators of routing and sampling as Triton's kernels, in its interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair

import dynamo
from inductor.lowering import routing, scans

sys.path.append(str(Path(__file__).parents[1] / "lowering"))
from routing_programs import PROGRAMS, assert_same


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(scans, routing)
    monkeypatch.setattr(scans, "SHORT", scans.DIRECT)
    for module in (scans, routing):
        monkeypatch.setattr(module, "LONGEST_SCAN", 0)
    monkeypatch.setattr(routing, "LONGEST_SORTED", 64)
    dynamo.reset()
    texts.clear()
    program, make = PROGRAMS[name]
    given = make()
    assert_same(dynamo.compile(program, backend=interpreted)(*given), program(*given))
    assert texts and "aten." not in texts[-1] and "slow0(" not in texts[-1], texts[-1]
