"""Kernels that are started together, as they are by default: eager's values, whatever memory a call gets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamo

pytestmark = pytest.mark.gpu


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.softmax(x, 0)
        x = torch.softmax(x * 3, 1)
    return x


def test_calls_with_results_held_and_let_go_of() -> None:
    compiled = dynamo.compile(chain)
    held = []
    for n in range(20):
        x = torch.randn(64, 96, device="cuda")
        found = compiled(x)
        torch.testing.assert_close(found, chain(x))
        if n % 3:
            held.append((found, chain(x)))
    for found, wanted in held:
        torch.testing.assert_close(found, wanted)


def test_input_that_is_filled_anew() -> None:
    compiled = dynamo.compile(chain)
    x = torch.empty(64, 96, device="cuda")
    for _ in range(20):
        x.normal_()
        torch.testing.assert_close(compiled(x), chain(x))


def test_other_streams_and_recordings() -> None:
    compiled = dynamo.compile(chain)
    x = torch.randn(64, 96, device="cuda")
    for _ in range(6):
        compiled(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(6):
            found = compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(found, chain(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inner = compiled(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(inner, chain(x))


def test_training_steps() -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Softmax(0), nn.LayerNorm(64))
        return nn.Sequential(*layers, *layers).cuda()

    models = made(), made()
    calls = models[0], dynamo.compile(models[1])
    steps = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for _ in range(12):
        x = torch.randn(32, 64, device="cuda")
        for call, step in zip(calls, steps, strict=True):
            call(x).square().mean().backward()
            step.step()
            step.zero_grad()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
