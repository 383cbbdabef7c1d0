"""Whole programs, forward and backward, whose graphs on the CPU are recorded without a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import recorded_memory
import torch
from recorded_memory import FakeRecorder
from recorded_programs import PROGRAMS

import dynamo
from inductor.runtime.cuda_graphs import GraphedCall
from inductor.runtime.recordable import written_inputs
from inductor.runtime.recorder import Pools
from inductor.scheduler.schedule import Schedule


@pytest.fixture
def calls(monkeypatch: Any) -> list[GraphedCall]:
    """The graphed calls that are made for graphs."""
    driver = importlib.import_module("inductor.driver.from_aten")
    monkeypatch.setattr(recorded_memory, "SIZE", 1 << 25)
    monkeypatch.setattr(importlib.import_module("inductor.driver.inference"), "frozen_inputs", lambda *_: frozenset())  # as on a GPU
    real, pools = driver.compile_aten, Pools()
    made: list[GraphedCall] = []

    def compile_aten(module: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        def graphed(launcher: Any, lowered: Any) -> Any:
            assert None not in lowered.graph.inputs
            written = written_inputs(lowered.graph, Schedule(()))
            constants = tuple(constant.value.detach() for constant in lowered.graph.constants)
            made.append(GraphedCall(
                launcher, FakeRecorder(), module.meta.get("values"), written, constants,
                repeatable=not written, pools=pools,
            ))  # fmt: skip
            return made[-1]

        monkeypatch.setattr(driver, "tensors_only", graphed)
        return real(module, fakes)

    monkeypatch.setattr(driver, "compile_aten", compile_aten)
    return made


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[[str], None], calls: list[GraphedCall]) -> None:
    dynamo.reset()
    torch.manual_seed(0)
    program("cpu")
    assert calls and not any(call.off for call in calls)
    assert sum(call.recorder.replayed for call in calls) > 3
    dynamo.reset()
