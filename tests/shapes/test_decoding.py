"""Greedy decoding of language models whose cache grows by one position per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

transformers = pytest.importorskip("transformers")
TOKENS = 32


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, vocab_size=97, n_positions=128))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
        intermediate_size=64, vocab_size=97, max_position_embeddings=128))


def decode(
    model: Callable[..., Any], prompt: torch.Tensor, count: int = TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens and the scores of each step."""
    cache, current = transformers.DynamicCache(), prompt
    tokens, scores = [], []
    with torch.no_grad():
        for _ in range(count):
            result = model(input_ids=current, past_key_values=cache, use_cache=True)
            scores.append(result.logits[:, -1])
            current = scores[-1].argmax(-1, keepdim=True)
            tokens.append(current)
    return torch.cat(tokens, 1), torch.stack(scores)


@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.long)])
def test_greedy_decoding(make: Callable[[], Any]) -> None:
    model, counter = make().eval(), CompileCounter()
    compiled = dynamo.compile(model, backend=counter)
    for length in (5, 8) if make is gpt2 else (5,):
        prompt = torch.randint(0, 97, (2, length))
        tokens, scores = decode(compiled, prompt)
        wanted_tokens, wanted_scores = decode(model, prompt)
        assert torch.equal(tokens, wanted_tokens)
        torch.testing.assert_close(scores, wanted_scores)
        if length == 5:
            assert counter.frame_count <= 3
    assert counter.frame_count <= 4


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_decoding_64_tokens(make: Callable[[], Any], backend: str) -> None:
    model = make().eval()
    dynamo.reset()
    compiled = dynamo.compile(model, backend=backend)
    prompt = torch.randint(0, 97, (2, 5))
    tokens, scores = decode(compiled, prompt, 64)
    wanted_tokens, wanted_scores = decode(model, prompt, 64)
    assert torch.equal(tokens, wanted_tokens)
    torch.testing.assert_close(scores, wanted_scores)
    assert dynamo.counters["stats"]["graphs"] <= 3


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(
        num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64,
        vocab_size=97, max_position_embeddings=64))


@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("axis", ["batch", "sequence"])
def test_twenty_sizes_of_a_model(make: Callable[[], Any], axis: str) -> None:
    model, counter = make().eval(), CompileCounter()
    compiled = dynamo.compile(model, backend=counter)
    with torch.no_grad():
        for size in range(3, 23):
            tokens = torch.randint(0, 97, (size, 7) if axis == "batch" else (2, size))
            found, wanted = compiled(input_ids=tokens), model(input_ids=tokens)
            torch.testing.assert_close(found[0], wanted[0])
    assert counter.frame_count <= 2


def test_step_counter_and_learning_rate() -> None:
    def step(weight: torch.Tensor, grad: torch.Tensor, number: int, rate: float) -> torch.Tensor:
        decay = 1 - 0.9**number if number < 1000 else 1.0
        return weight - rate * grad / decay

    counter = CompileCounter()
    compiled = dynamo.compile(step, backend=counter)
    weight, grad = torch.randn(4), torch.randn(4)
    for number in range(1, 21):
        rate = 0.1 / number
        found, wanted = (f(weight, grad, number, rate) for f in (compiled, step))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert counter.frame_count <= 2
