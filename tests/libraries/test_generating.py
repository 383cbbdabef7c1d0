"""`generate()` of transformers, a compiled forward or all of it compiled: eager's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from dynamo.integrations.transformers import compile_generation
from dynamo.testing import CompileCounter
from tests.libraries.harness import seed
from tests.libraries.language import llama, prompt

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 10, "top_p": 0.9, "temperature": 0.7},
    "beams": {"do_sample": False, "num_beams": 2},
    "static": {"do_sample": False, "cache_implementation": "static"},
}


def generated(generate: Any, way: str, length: int) -> torch.Tensor:
    seed(3)
    words = prompt()
    return generate(
        words, attention_mask=torch.ones_like(words), max_new_tokens=length, eos_token_id=None,
        pad_token_id=0, **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_forward(way: str) -> None:
    seed(0)
    model = llama().eval()
    want = generated(model.generate, way, 5)
    counter = CompileCounter()
    dynamo.reset()
    model.forward = dynamo.compile(model.forward, backend=counter)
    assert torch.equal(generated(model.generate, way, 5), want)
    # The first words, the next word, the next of any length; once more where an import that
    # transformers puts off registers an abstract class.
    assert counter.frame_count <= 5


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_for_each_token(way: str) -> None:
    seed(0)
    model = llama().eval()
    want = [generated(model.generate, way, length) for length in (7, 4)]
    dynamo.reset()
    assert compile_generation(model, backend="aot_eager") is model
    assert model.generation_config.disable_compile, "torch.compile does not compile it as well"
    for length, words in zip((7, 4), want, strict=True):
        assert torch.equal(generated(model.generate, way, length), words)
    assert not dynamo.counters["graph_break"] and not dynamo.counters["internal_errors"]
    frames = dynamo.counters["stats"]["frames"]
    assert frames <= 8, "three functions, for the prompt, one word and any length"
    generated(model.generate, way, 6)
    assert dynamo.counters["stats"]["frames"] == frames


@pytest.mark.libraries
@pytest.mark.parametrize("way", WAYS)
def test_whole(way: str) -> None:
    seed(0)
    model = llama().eval()
    want = generated(model.generate, way, 4)
    dynamo.reset()
    assert torch.equal(generated(dynamo.compile(model.generate, backend="eager"), way, 4), want)
    assert not dynamo.counters["internal_errors"]
