"""Decoding of words, token by token and in chunks, with models of transformers; what people write
around and in place of them is in `generation`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, built, infer, program, train

GRAPHS = "reduce-overhead"


def language_model(place: Place, kind: str, **options: Any) -> nn.Module:
    """A model of transformers with random weights, 8 blocks where it is large."""
    import transformers

    common: dict[str, Any] = place.of(
        {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
        {"vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 8192,
         "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 128},
    )  # fmt: skip
    text = "Text" if kind == "Gemma3" else ""  # its other configuration is that of images too
    config = getattr(transformers, f"{kind}{text}Config")(**common | options)
    model: nn.Module = built(place, getattr(transformers, f"{kind}ForCausalLM"), config)
    return model.eval()


def words(place: Place, batch: int, length: int) -> Tensor:
    return place.integers(place.of(101, 65536), batch, length)


def with_cache(model: nn.Module, cache: Any) -> dict[str, Any]:
    """The argument for a cache, whose name differs among versions of transformers."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def decode(compile: Compile, place: Place, model: nn.Module, batch: int) -> Step:
    """Greedy tokens from a static cache: a prompt in eager, then compiled steps in CUDA graphs."""
    from transformers import StaticCache

    length = place.of(8, 256)
    cache = StaticCache(config=model.config, max_cache_len=place.of(64, 1024))
    named = with_cache(model, cache)
    with torch.no_grad():
        logits = model(words(place, batch, length), use_cache=True, **named).logits[:, -1:]
    token = logits.argmax(-1)
    position = torch.full((1, 1), length, device=place.device)
    compiled = compile(model, mode=GRAPHS, fullgraph=True)
    starts = [layer.cumulative_length.clone() for layer in cache.layers
              if hasattr(layer, "cumulative_length")]  # fmt: skip

    @torch.no_grad()
    def step() -> Tensor:
        for layer, start in zip(cache.layers, starts, strict=True):  # the same step each time
            layer.cumulative_length.copy_(start)
        output = compiled(token, position_ids=position, use_cache=True, **named)
        return output.logits.clone()

    return step


@program
def llama_decode_1(compile: Compile, place: Place) -> Step:
    return decode(compile, place, language_model(place, "Llama"), 1)


@program
def qwen3_decode_8(compile: Compile, place: Place) -> Step:
    return decode(compile, place, language_model(place, "Qwen3"), 8)


@program
def gemma3_decode_1(compile: Compile, place: Place) -> Step:
    """Windows in five of six layers, four norms a block."""
    window = place.of(16, 512)
    return decode(compile, place, language_model(place, "Gemma3", sliding_window=window), 1)


@program
def mistral_decode_32(compile: Compile, place: Place) -> Step:
    model = language_model(place, "Mistral", sliding_window=place.of(16, 512))
    return decode(compile, place, model, 32)


@program
def phi3_decode_1(compile: Compile, place: Place) -> Step:
    return decode(compile, place, language_model(place, "Phi3", pad_token_id=0), 1)


@program
def qwen2_yarn_prefill(compile: Compile, place: Place) -> Step:
    """A prompt with the frequencies of YaRN, only the last logits wanted."""
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
            "original_max_position_embeddings": place.of(16, 2048)}  # fmt: skip
    model = language_model(place, "Qwen2", rope_parameters=rope)
    ids = words(place, 1, place.of(24, 4096))
    return infer(compile, model, input_ids=ids, use_cache=False, logits_to_keep=1)


@program
def llama_padded_prefill(compile: Compile, place: Place) -> Step:
    """Prompts of several lengths, padded on the left."""
    model = language_model(place, "Llama")
    batch, length = 4, place.of(12, 1024)
    missing = torch.arange(batch, device=place.device)[:, None] * (length // 8)
    mask = (torch.arange(length, device=place.device) >= missing).long()
    given = {"input_ids": words(place, batch, length), "attention_mask": mask,
             "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    compiled = compile(model.eval())

    @torch.no_grad()
    def step() -> Any:
        # rows that see nothing have no defined result: torch's kernels give different ones
        return compiled(**given, use_cache=False).logits[mask.bool()]

    return step


@program
def llama_checkpointed_train(compile: Compile, place: Place) -> Step:
    model = language_model(place, "Llama", tie_word_embeddings=True)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = words(place, 2, place.of(12, 1024))
    return train(compile, model.train(), criterion=lambda out: out.loss, input_ids=ids,
                 labels=ids, use_cache=False)  # fmt: skip


@program
def modernbert_embed(compile: Compile, place: Place) -> Step:
    """Sentences to vectors: mean over the words that are there, and a norm of one."""
    import transformers

    sizes = place.of(
        {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4, "pad_token_id": 0}, {"num_hidden_layers": 12})  # fmt: skip
    config = transformers.ModernBertConfig(**sizes)
    model = built(place, transformers.ModernBertModel, config)
    batch, length = place.of((3, 12), (64, 256))
    ids = place.integers(100, batch, length)
    lengths = 1 + place.integers(length, batch, 1)
    mask = (torch.arange(length, device=place.device) < lengths).long()

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            summed = (states * mask.unsqueeze(-1)).sum(1)
            return F.normalize(summed / mask.sum(1, keepdim=True).clamp(min=1e-9), dim=-1)

    return infer(compile, Embed(), ids, mask)


@program
def qwen3_rerank(compile: Compile, place: Place) -> Step:
    """The last token's logits of yes and no, of pairs padded on the right."""
    model = language_model(place, "Qwen3")
    batch, length = place.of((3, 12), (16, 256))
    ids = words(place, batch, length)
    lengths = 1 + place.integers(length, batch)
    mask = (torch.arange(length, device=place.device) < lengths[:, None]).long()

    def score(ids: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        states = model.model(input_ids=ids, attention_mask=mask, use_cache=False)[0]
        last = states[torch.arange(batch, device=states.device), lengths - 1]
        both = last @ model.lm_head.weight[[7, 9]].t()
        return both.float().log_softmax(-1)[:, 0].exp()

    return infer(compile, score, ids, mask, lengths)


@program
def t5_decode_step(compile: Compile, place: Place) -> Step:
    """A decoder with an encoder's states, relative positions, no cache."""
    import transformers

    sizes = place.of({"vocab_size": 101, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
                      "num_heads": 4}, {"d_model": 1024, "d_ff": 2816, "num_layers": 12,
                                        "num_heads": 16})  # fmt: skip
    sizes |= {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
    config = transformers.T5Config(**sizes)
    model = built(place, transformers.T5ForConditionalGeneration, config)
    batch, length = place.of((2, 12), (16, 256))
    ids, so_far = place.integers(100, batch, length), place.integers(100, batch, place.of(4, 32))
    return infer(compile, model, input_ids=ids, decoder_input_ids=so_far, use_cache=False)


@program
def mamba2_prefill(compile: Compile, place: Place) -> Step:
    import transformers

    sizes = place.of(
        {"vocab_size": 101, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16,
         "num_hidden_layers": 2, "n_groups": 1, "chunk_size": 8},
        {"vocab_size": 32768, "hidden_size": 1024, "num_heads": 32, "num_hidden_layers": 4,
         "n_groups": 1},
    )  # fmt: skip
    model = built(place, transformers.Mamba2ForCausalLM, transformers.Mamba2Config(**sizes))
    ids = place.integers(100, 2, place.of(16, 1024))
    return infer(compile, model, input_ids=ids, use_cache=False)


@program
def rwkv_step(compile: Compile, place: Place) -> Step:
    """A recurrent step by hand: decays by token, a matrix of state a head, 12 blocks."""
    batch, heads, head, blocks = place.of((2, 2, 8, 2), (32, 32, 64, 12))
    width = heads * head
    states = place.normal(blocks, batch, heads, head, head, dtype=torch.float32)
    before = place.normal(blocks, batch, width)
    mix = place.normal(blocks, 4, width).sigmoid()
    projections = place.normal(blocks, 5, width, width) * width**-0.5

    def token(x: Tensor) -> Tensor:
        for i in range(blocks):
            normed = F.layer_norm(x, (width,))
            mixed = [torch.lerp(before[i], normed, mix[i, j]) for j in range(4)]
            before[i].copy_(normed)
            r, k, v, w = (y @ p for y, p in zip(mixed, projections[i], strict=False))
            decay = torch.exp(-torch.exp(w.float())).view(batch, heads, head, 1)
            k, v, r = (y.view(batch, heads, head) for y in (k, v, r))
            outer = (k.unsqueeze(-1) * v.unsqueeze(-2)).float()
            read = torch.einsum("bhk,bhkv->bhv", r.float(), states[i] + 0.5 * outer)
            states[i].mul_(decay).add_(outer)
            x = x + F.group_norm(read.flatten(1), heads).to(x.dtype) @ projections[i, 4]
        return x

    return infer(compile, token, place.normal(batch, width), mode=GRAPHS)
