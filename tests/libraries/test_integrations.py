"""`compile_prepared` in one line: what a Trainer and an Accelerator make is eager's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dynamo
from dynamo.integrations.transformers import compile_prepared
from dynamo.testing import CompileCounter
from tests.libraries.harness import compare, seed
from tests.libraries.language import Sentences, llama
from tests.libraries.test_programs import QUIET, batches, network, state

pytestmark = pytest.mark.libraries


def trained(put: Callable[[Any], Any], **told: Any) -> list[torch.Tensor]:
    from transformers import Trainer, TrainingArguments
    seed(0)
    model, data = llama(), Sentences()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=2, **QUIET, **told)
        run = put(Trainer(model=model, args=arguments, train_dataset=data))
        losses = [run.train().training_loss, run.evaluate(data)["eval_loss"]]
        run.save_model(folder)
        again = type(model).from_pretrained(folder)
    compare(state(again), state(model), 0.0)
    return [torch.tensor(losses), *state(model)]


def stepped(put: Callable[[Any], Any], **told: Any) -> list[torch.Tensor]:
    from accelerate import Accelerator
    seed(0)
    accelerator, model = put(Accelerator(cpu=True, **told)), network()
    prepared, optimizer, data = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batches())
    for x, y in data:
        accelerator.backward(F.cross_entropy(prepared(x), y))
        optimizer.step()
        optimizer.zero_grad()
    assert accelerator.unwrap_model(prepared) is model
    return state(model)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Accelerators share their settings, and a Trainer writes some into the environment."""
    pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState
    for name in ("BACKEND", "MODE"):
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}", raising=False)
    dynamo.reset()
    AcceleratorState._reset_state(True)
    monkeypatch.setattr(torch, "compile", None)  # which nobody calls
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.parametrize("run", [trained, stepped])
def test_like_eager(run: Any) -> None:
    counter, wanted = CompileCounter(), run(lambda host: host)
    found = run(lambda host: compile_prepared(host, backend=counter))
    compare(found, wanted, 1e-5)
    assert 0 < counter.frame_count <= 3


@pytest.mark.parametrize("run, told", [
    (trained, {"torch_compile": True, "torch_compile_backend": "aot_eager"}),
    (stepped, {"dynamo_backend": "aot_eager"}),
])
def test_what_it_was_told_of_torch_compile(run: Any, told: dict[str, Any]) -> None:
    wanted = run(lambda host: host)
    dynamo.reset()
    compare(run(compile_prepared, **told), wanted, 1e-5)
    assert dynamo.counters["stats"]["graphs"]
