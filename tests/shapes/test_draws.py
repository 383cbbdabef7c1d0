"""Draws of given parameters: eager's numbers at eager's strides."""

from __future__ import annotations

import pytest
import torch

import dynamo

PROGRAMS = {
    "bernoulli": torch.bernoulli,
    "poisson": torch.poisson,
    "normal": lambda x: torch.normal(x, x),
    "mean": lambda x: torch.normal(x, 1.0),
    "spread": lambda x: torch.normal(0.0, x),
    "binomial": lambda x: torch.binomial((x * 5).floor(), x),
    "viewed": lambda x: torch.bernoulli(x).view(-1),
    "in place": lambda x: x.bernoulli_(0.4) * 2,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides(name: str, dynamic: bool) -> None:
    program = PROGRAMS[name]
    compiled = dynamo.compile(lambda x: (program(x), x.sum()), dynamic=dynamic)
    for make in (
        lambda: torch.rand(5, 3).t(), lambda: torch.rand(4, 6)[:, ::2],
        lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ):
        x = make()
        found = []
        for function in (program, lambda x: compiled(x)[0]):
            torch.manual_seed(3)
            out = function(x.clone(memory_format=torch.preserve_format))
            found.append((out, out.stride(), torch.get_rng_state()))
        (want, strides, state), (got, found_strides, after) = found
        assert torch.equal(want, got) and torch.equal(state, after)
        assert found_strides == strides
