"""Transformer models with a dynamic batch and sequence: one capture for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import aot
from dynamo.aot.decompositions import default_decompositions
from tests.aot.test_symbolic import Recorded

transformers = pytest.importorskip("transformers")
WORDS = 53
SIZES = ((3, 17), (7, 4), (4, 31), (6, 6))


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64,
        vocab_size=WORDS, max_position_embeddings=64, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0)  # fmt: skip
    return transformers.BertForMaskedLM(config)


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=WORDS, n_positions=64, use_cache=False,
        resid_pdrop=0.1, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1,
        loss_type="ForCausalLM")  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=64, use_cache=False,
        bos_token_id=0, eos_token_id=1)  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def compiled(model: torch.nn.Module, recorded: list[Recorded]) -> Callable[..., Any]:
    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        recorded.append(Recorded())
        compile_graph: Callable[..., Any] = aot.compile_training
        compilers = [recorded[-1], recorded[-1]]
        if not torch.is_grad_enabled():
            compile_graph, compilers = aot.compile_inference, compilers[:1]
        return compile_graph(
            gm, examples, *compilers, decompositions=default_decompositions(), symbolic=True)

    return dynamo.compile(model, backend=backend)


@pytest.mark.parametrize(("make", "train"), [
    pytest.param(bert, True, marks=pytest.mark.long), pytest.param(gpt2, False, marks=pytest.mark.long), (llama, True)])
def test_one_capture_for_all_sizes(make: Callable[[], torch.nn.Module], train: bool) -> None:
    model = make().train(train)
    recorded: list[Recorded] = []
    call = compiled(model, recorded)
    ids = torch.randint(WORDS, (5, 11))
    dynamo.mark_dynamic(ids, 0)
    dynamo.mark_dynamic(ids, 1)
    with torch.set_grad_enabled(train):
        call(input_ids=ids, labels=ids)
        for sizes in SIZES:
            ids = torch.randint(WORDS, sizes)
            results = [run(function, model, ids, train) for function in (call, model)]
            for got, want in zip(*results, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len(recorded) == 1


def run(function: Any, model: torch.nn.Module, ids: torch.Tensor, train: bool) -> list[Any]:
    """Logits, loss and the gradients of all parameters."""
    torch.manual_seed(0)
    out = function(input_ids=ids, labels=ids)
    if not train:
        return [out.logits, out.loss]
    model.zero_grad()
    out.loss.backward()
    return [out.logits, out.loss, *[p.grad for p in model.parameters() if p.grad is not None]]
