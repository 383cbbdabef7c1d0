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


def decode(model: Callable[..., Any], prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens and the scores of each step."""
    cache, current = transformers.DynamicCache(), prompt
    tokens, scores = [], []
    with torch.no_grad():
        for _ in range(TOKENS):
            result = model(input_ids=current, past_key_values=cache, use_cache=True)
            scores.append(result.logits[:, -1])
            current = scores[-1].argmax(-1, keepdim=True)
            tokens.append(current)
    return torch.cat(tokens, 1), torch.stack(scores)


@pytest.mark.parametrize("make", [gpt2, llama])
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
