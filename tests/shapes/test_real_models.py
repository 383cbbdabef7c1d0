"""Whole models on twelve batches of other sizes: two compiles, and a float64 model's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dynamo
from dynamo.testing import CompileCounter

pytestmark = pytest.mark.long
WORDS = 61
SIZES = [(3, 7), (4, 9), (2, 12), (5, 5), (6, 17), (3, 30), (8, 8), (7, 3), (7, 21), (4, 33), (9, 4), (3, 16)]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def labelled(batch: int, length: int) -> dict[str, Tensor]:
    words = torch.randint(3, WORDS, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -1] = 0
    return {"input_ids": words, "attention_mask": mask, "labels": words}


def translated(batch: int, length: int) -> dict[str, Tensor]:
    return {**labelled(batch, length), "labels": torch.randint(3, WORDS, (batch, length // 2 + 2))}


def image(batch: int, length: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(5, (batch,))}


def speech(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch, 8, 60), "labels": torch.randint(3, WORDS, (batch, length))}


# model, configuration, its values, inputs
LANGUAGE: dict[str, tuple[str, str, dict[str, Any], Callable[[int, int], dict[str, Tensor]]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", {
        **SMALL, "vocab_size": WORDS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, labelled),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}, labelled),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {
        **SMALL, "vocab_size": WORDS, "num_key_value_heads": 2}, labelled),
    "t5": ("T5ForConditionalGeneration", "T5Config", {
        "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "dropout_rate": 0.0, "decoder_start_token_id": 0}, translated),
    "vit": ("ViTForImageClassification", "ViTConfig", {
        **SMALL, "image_size": 16, "patch_size": 4, "num_labels": 5, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0}, image),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", {
        "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "max_source_positions": 30, "max_target_positions": 64, "dropout": 0.0, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}, speech),
}  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.last = nn.Conv2d(14, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        deep = F.interpolate(self.deep(F.max_pool2d(wide, 2)).relu(), size=wide.shape[-2:], mode="bilinear")
        return self.last(self.up(torch.cat([wide, deep], 1)).relu())


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.block(self.depth(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


class LastOfLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(words))
        return self.head(states[torch.arange(len(words)), lengths - 1])


OTHERS: dict[str, tuple[type[nn.Module], Callable[[int, int], dict[str, Tensor]]]] = {
    "unet": (UNet, lambda n, m: {"x": torch.randn(n, 3, 17 + m, 20 + n)}),
    "convnext": (ConvNeXt, lambda n, m: {"x": torch.randn(n, 3, 20 + m, 24 + 3 * n)}),
    "lstm": (LastOfLSTM, lambda n, m: {
        "words": torch.randint(20, (n, m)), "lengths": torch.randint(1, m + 1, (n,))}),
}


def made(name: str) -> tuple[nn.Module, Callable[[int, int], dict[str, Tensor]]]:
    torch.manual_seed(0)
    if name in OTHERS:
        return OTHERS[name][0](), OTHERS[name][1]
    transformers = pytest.importorskip("transformers")
    model, config, values, inputs = LANGUAGE[name]
    return getattr(transformers, model)(getattr(transformers, config)(**values)), inputs


def doubled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}


def loss_of(found: Any) -> Tensor:
    return found.square().mean() if isinstance(found, Tensor) else found.loss


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [*LANGUAGE, *OTHERS])
def test_twelve_sizes(name: str, dynamic: bool | None, training: bool, backend: str) -> None:
    model, inputs = made(name)
    model.train(training)
    exact, counter = copy.deepcopy(model).double(), CompileCounter(backend)
    compiled = dynamo.compile(model, backend=counter, dynamic=dynamic)
    for batch, length in SIZES:
        given = inputs(batch, length)
        with torch.set_grad_enabled(training):
            found, wanted = compiled(**given), exact(**doubled(given))
        for get in (loss_of, lambda result: getattr(result, "logits", result)):
            torch.testing.assert_close(get(found).double(), get(wanted).double(), rtol=1e-3, atol=3e-4)
        if training:
            model.zero_grad(), exact.zero_grad()
            loss_of(found).backward(), loss_of(wanted).backward()
            for (place, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
                assert (mine.grad is None) == (theirs.grad is None), place
                if mine.grad is not None:
                    torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=3e-4)
    assert counter.frame_count <= 2
