"""`compile_prepared` on a stand-in for an Accelerator; `tests/libraries` has the real ones."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dynamo.integrations.transformers import compile_generation, compile_prepared
from dynamo.testing import CompileCounter


class Backend(enum.Enum):
    NO = "NO"
    EAGER = "EAGER"
    UNKNOWN = "UNKNOWN"


class Accelerator:
    def __init__(self, backend: Backend) -> None:
        plugin = SimpleNamespace(backend=backend, mode="default", fullgraph=False, dynamic=None, options=None, disable=False)
        self.state = SimpleNamespace(dynamo_plugin=plugin)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        assert self.state.dynamo_plugin.backend is Backend.NO
        return model

    def prepare(self, model: nn.Module, *others: Any) -> Any:
        made = self.prepare_model(model)
        return (made, *others) if others else made


@pytest.mark.parametrize("backend", [Backend.NO, Backend.UNKNOWN])
@pytest.mark.parametrize("others", [(), (3,)])
def test_models_are_compiled_in_place(backend: Backend, others: tuple[int, ...]) -> None:
    accelerator, counter, model, x = Accelerator(backend), CompileCounter(), nn.Linear(3, 2), torch.randn(4, 3)
    trainer = SimpleNamespace(accelerator=accelerator)
    assert compile_prepared(trainer, backend=counter, fullgraph=True) is trainer
    made = accelerator.prepare(model, *others)
    assert (made[0] if others else made) is model and accelerator.state.dynamo_plugin.backend is backend
    assert torch.equal(model(x), model.forward(x)) and counter.frame_count == 1
    call = model._compiled_call_impl
    assert accelerator.prepare_model(model)._compiled_call_impl is call


def test_what_it_was_told() -> None:
    model = compile_prepared(Accelerator(Backend.EAGER)).prepare(nn.ReLU())
    assert torch.equal(model(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    with pytest.raises(TypeError, match="a Trainer or an Accelerator"):
        compile_prepared(nn.ReLU())


def test_what_does_not_generate() -> None:
    with pytest.raises(TypeError, match="a model with generate"):
        compile_generation(nn.ReLU())
