"""A small language model with random weights, for programs of several libraries."""

from __future__ import annotations

from typing import Any

import torch

WORDS = 50


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds, in each worker that collects

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def prompt() -> torch.Tensor:
    return torch.randint(3, WORDS, (2, 5))


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.words = torch.randint(3, WORDS, (20, 8))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}
