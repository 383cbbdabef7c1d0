"""What the sweep over all types of transformers says of a model that fails when it is compiled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2]))
import dynamo
from benchmarks import transformers_all
from benchmarks.transformers_rows import reasons_of, verdict

OPTIONS = argparse.Namespace(dtype="float32", device="cpu", backend="eager", training=True, no_peer=True)


class Masked(nn.Module):
    """Adds a mask to scores; one that is made for compilers has another size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.linear = size, nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.linear(x)
        return scores + torch.zeros(self.size) if torch.compiler.is_compiling() else scores


def row_of(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> transformers_all.Row:
    monkeypatch.setattr(transformers_all, "build", lambda name, device: (model, {"x": torch.randn(2, 8)}))
    measurement = transformers_all.Measurement("model", OPTIONS)
    measurement.run()
    return measurement.row


def test_a_model_that_is_right(monkeypatch) -> None:
    assert verdict(row_of(Masked(12), monkeypatch)) == "ok"


def test_a_model_that_is_wrong_when_told_that_it_is_compiled(monkeypatch) -> None:
    """The same error with `is_compiling()` true is the model's own, and ours says it in eager's words."""
    row = row_of(Masked(17), monkeypatch)
    assert verdict(row) == "raises"
    said = "RuntimeError: The size of tensor a (12) must match the size of tensor b (17) at non-singleton dimension 1"
    fails = ("graphs", "eval_ours", "train_ours", "eval_compiling", "train_compiling")
    assert list(reasons_of(row)) == [f"model: {key}: {said}" for key in fails]


@pytest.mark.parametrize("size", [12, 17])
def test_an_error_of_ours(size, monkeypatch) -> None:
    def refuses(model: nn.Module, **options: object) -> None:
        def call(**arguments: torch.Tensor) -> None:
            raise RuntimeError("of ours")

        return call

    monkeypatch.setattr(dynamo, "compile", refuses)
    assert verdict(row_of(Masked(size), monkeypatch)) == "FAILS"
