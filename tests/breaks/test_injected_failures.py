"""A compile that fails half-way leaves no trace: a stage does its work, and then raises, once.

The program's results, its state, the random numbers and torch's state are eager's, with one warning; where errors are
not suppressed, the error comes out, and nothing of the program has happened.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config
from dynamo.base.errors import DynamoError
from tests.common import new_cache

# stage -> where its function is looked up
STAGES = {
    "decoding": "dynamo.symbolic.core.context:decode",
    "tracing": "dynamo.frames.attempts:Attempts.trace",
    "tracing a call": "dynamo.symbolic.machine.trace:Trace.call",
    "outputs": "dynamo.frames.graph_functions:choose_outputs",
    "pruning": "dynamo.frames.graph_functions:close_graph",
    "bytecode": "dynamo.frames.convert:generate",
    "guards": "dynamo.frames.entries:program_text",
    "reference": "dynamo.aot.capture:run_reference",
    "functional form": "dynamo.aot.capture:Session.run",
    "decomposing": "dynamo.aot.api:decompose",
    "joint graph": "dynamo.aot.joint:record_program",
    "partition": "dynamo.aot.api:partition_joint",
    "around the graph": "dynamo.aot.api:wrap_compiled",
    "lowering": "inductor.driver.from_aten:lower_graph",
    "scheduling": "inductor.driver.from_aten:schedule_graph",
    "printing": "inductor.driver.cpu:generate",
    "the C++ compiler": "inductor.driver.cpu:build",
    "loading": "inductor.driver.cpu:load",
}


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros(2))
        self.calls = 0
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        self.calls += 1
        log.append(self.calls)
        y = torch.nn.functional.dropout(self.norm(x), 0.5)
        with torch.no_grad():
            self.scale = y.abs().max()
        self.steps.add_(1)
        return self.linear(y) * self.scale


def failing(monkeypatch: pytest.MonkeyPatch, where: str) -> list[int]:
    """Makes the function raise at the end of its first call; the list tells how often it was called."""
    place, path = where.split(":")
    owner: Any = importlib.import_module(place)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    calls: list[int] = []

    def work_and_fail(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("a defect")
        return result

    monkeypatch.setattr(owner, name, work_and_fail)
    return calls


def torch_state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(), torch._C._is_torch_function_enabled(),
    )  # fmt: skip


def state_of(model: Program) -> Any:
    tensors = {name: value.tolist() for name, value in model.state_dict().items()}
    grads = [p.grad.tolist() if p.grad is not None else None for p in model.parameters()]
    scale = model.__dict__.get("scale")
    return tensors, grads, model.calls, sorted(vars(model)), scale is not None and scale.item()


def run(function: Callable[..., Any], model: Program, training: bool) -> list[Any]:
    torch.manual_seed(3)
    seen: list[Any] = []
    for call in range(3):
        x, log = torch.arange(20.0).view(5, 4) + call, []
        with torch.set_grad_enabled(training):
            out = function(model, x, log)
        if training:
            out.sum().backward()
        seen.append((out.tolist(), x.tolist(), x._version, log, state_of(model), out.requires_grad))
        seen.append((torch.get_rng_state().tolist(), torch_state()))
    return seen


def close(got: Any, want: Any) -> bool:
    if isinstance(want, float):
        return bool(got == pytest.approx(want, rel=1e-4, abs=1e-5))
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(close, got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(close(got[k], want[k]) for k in want)
    return bool(got == want)


# Stages of training only; `reference` is one of inference only.
OF_TRAINING = ("joint graph", "partition")
CASES = [(stage, stage in OF_TRAINING) for stage in STAGES] + [("guards", True), ("loading", True)]


@pytest.mark.parametrize(("stage", "training"), CASES)
def test_a_failing_stage_is_not_seen(
    stage: str, training: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def function(model: Program, x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        return model(x, log)

    model = Program()
    other = copy.deepcopy(model)
    code, class_code = function.__code__, Program.forward.__code__
    want = run(function, model, training)
    with config.patch(suppress_errors=True), new_cache(tmp_path), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dynamo.reset()
        with monkeypatch.context() as patch:
            calls = failing(patch, STAGES[stage])
            got = run(dynamo.compile(function), other, training)
    assert calls
    assert close(got, want)
    about = [str(w.message) for w in told if "a defect" in str(w.message)]
    assert len(about) == 1
    assert function.__code__ is code and Program.forward.__code__ is class_code


@pytest.mark.parametrize("stage", ["tracing a call", "bytecode", "guards", "joint graph", "lowering", "loading"])
def test_the_error_comes_out_where_asked(stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def function(model: Program, x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        return model(x, log)

    model, x, log = Program(), torch.ones(5, 4), []
    before = state_of(model), torch.get_rng_state().tolist(), torch_state()
    with config.patch(suppress_errors=False), new_cache(tmp_path):
        dynamo.reset()
        with monkeypatch.context() as patch:
            failing(patch, STAGES[stage])
            with pytest.raises(DynamoError, match="a defect"):
                dynamo.compile(function)(model, x, log)
        assert (state_of(model), torch.get_rng_state().tolist(), torch_state()) == before
        assert log == [] and x._version == 0
        dynamo.reset()
        assert dynamo.compile(function)(model, x, log).shape == (5, 3)
    assert log == [1]
