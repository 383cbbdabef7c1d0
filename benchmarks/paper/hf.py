"""Models of transformers at the three sizes, from configurations with random weights.

A row of `MODELS` has a class of transformers, its configuration, and what goes in. Configurations
name the same size differently; `NAMES` has those names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Size:
    """Of models of text: width, layers, heads, batch, tokens, vocabulary. pixels: of images."""

    width: int
    layers: int
    heads: int
    batch: int
    tokens: int
    words: int
    pixels: int = 224


SIZES = {
    "small": Size(128, 2, 4, 2, 32, 1000, 64),
    "real": Size(768, 4, 12, 2, 128, 30000),
    "large": Size(768, 12, 12, 8, 512, 30000),
}
# What configurations call the width, the layers, the heads, the width inside, the vocabulary.
NAMES = {
    "width": "hidden_size d_model n_embd dim embed_dim word_embed_proj_dim",
    "layers": "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers "
              "num_decoder_layers",
    "heads": "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
             "decoder_attention_heads attention_heads",
    "inside": "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner hidden_dim "
              "n_inner",
    "words": "vocab_size",
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
           "sep_token_id": 2, "decoder_start_token_id": 0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """config: without `Config`. gets: a row of `INPUTS`. name: of the class, the row's otherwise.
    own: a function of the size that gives settings."""

    config: str
    gets: str = "text"
    more: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    own: Callable[[Size], dict[str, Any]] = lambda size: {}


FEWER_HEADS = {"num_key_value_heads": 4}
MODELS: dict[str, Known] = {
    "BertForMaskedLM": Known("Bert"),
    "GPT2LMHeadModel": Known("GPT2"),
    "LlamaForCausalLM": Known("Llama", more=FEWER_HEADS),
    "T5ForConditionalGeneration": Known("T5", "pair", own=lambda s: {"d_kv": s.width // s.heads}),
    "ViTForImageClassification": Known("ViT", "image", {"patch_size": 16}),
    "MambaForCausalLM": Known("Mamba", "ids", own=lambda s: {"intermediate_size": 2 * s.width}),
    "WhisperForConditionalGeneration": Known("Whisper", "sound", {"max_source_positions": 100}),
    "Gemma2ForCausalLM": Known("Gemma2", more={**FEWER_HEADS, "head_dim": 64}),
    "Qwen2ForCausalLM": Known("Qwen2", more=FEWER_HEADS),
    "AlbertForMaskedLM": Known("Albert", more={"embedding_size": 128}),
    "DebertaV2ForMaskedLM": Known("DebertaV2", more={
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 32}),
    "ModernBertForMaskedLM": Known("ModernBert", more={"local_attention": 32}),
    "CLIPModel": Known("CLIP", "both"),
    "ConvNextForImageClassification": Known("ConvNext", "image", own=lambda s: {
        "hidden_sizes": [32, 64], "depths": [2, 2], "num_stages": 2} if s.pixels < 224 else {}),
    "BartForCausalLM": Known("Bart"),
    "BigBirdForMaskedLM": Known("BigBird", more={"attention_type": "original_full"}),
    "BlenderbotForConditionalGeneration": Known("Blenderbot", "pair"),
    "ConvBertForMaskedLM": Known("ConvBert"),
    "DistilBertForMaskedLM": Known("DistilBert"),
    "FNetForMaskedLM": Known("FNet", "ids"),
    "GPT2ForSequenceClassification": Known("GPT2"),
    "GPTNeoForCausalLM": Known("GPTNeo", more={"window_size": 16}, own=lambda s: {
        "attention_types": [[["global", "local"], s.layers // 2]]}),
    "MBartForCausalLM": Known("MBart"),
    "MegatronBertForCausalLM": Known("MegatronBert"),
    "OPTForCausalLM": Known("OPT"),
    "PegasusForCausalLM": Known("Pegasus"),
    "Phi3ForCausalLM": Known("Phi3", more=FEWER_HEADS),
    "RobertaForCausalLM": Known("Roberta", more={"is_decoder": True}),
    "TrOCRForCausalLM": Known("TrOCR", "ids"),
    "Llama-prefill-cache": Known("Llama", "cache", FEWER_HEADS, "LlamaForCausalLM"),
    "Llama-decode-static": Known("Llama", "decode", FEWER_HEADS, "LlamaForCausalLM"),
}  # fmt: skip
# Their caches take part in the graph; their gradients are no use of theirs.
WITHOUT_TRAINING = ("Llama-prefill-cache", "Llama-decode-static")


def build(name: str, size: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its keyword arguments."""
    import transformers

    known, own = MODELS[name], SIZES[size]
    config = configuration(known, own)
    model = getattr(transformers, known.name or name)(config)
    given = INPUTS[known.gets](own, config)
    if known.gets == "decode":
        model = DecodeStep(model.eval(), own)
    return model, given


def configuration(known: Known, size: Size) -> Any:
    import transformers

    kind = getattr(transformers, f"{known.config}Config")
    if known.gets == "both":
        text = filled(transformers.CLIPTextConfig, size, {"projection_dim": 64})
        vision = filled(transformers.CLIPVisionConfig, size,
                        {"image_size": size.pixels, "patch_size": 16, "projection_dim": 64})
        return kind(text_config=text, vision_config=vision, projection_dim=64)
    more = {**known.more, **known.own(size)}
    if known.gets == "image":
        more["image_size"] = size.pixels
    config = kind(**filled(kind, size, more))
    if hasattr(config, "use_cache"):
        config.use_cache = known.gets in ("cache", "decode")
    return config


def filled(kind: Any, size: Size, more: dict[str, Any]) -> dict[str, Any]:
    """The sizes under the names that a configuration has for them, and what is given."""
    known = kind().to_dict()
    sizes = {"width": size.width, "layers": size.layers, "heads": size.heads,
             "inside": 4 * size.width, "words": size.words}  # fmt: skip
    found = {name: sizes[what] for what, names in NAMES.items() for name in names.split()
             if name in known and not isinstance(known[name], list | tuple)}  # fmt: skip
    other = getattr(kind, "attribute_map", {})  # two names of one setting
    found = {name: value for name, value in found.items() if other.get(name) not in found}
    found |= {name: token for name, token in SPECIAL.items()
              if isinstance(known.get(name), int) and known[name] >= size.words}  # fmt: skip
    if isinstance(known.get("head_dim"), int):
        found["head_dim"] = size.width // size.heads
    if "pad_token_id" in inspect.signature(kind).parameters and "words" not in known:
        found.setdefault("pad_token_id", 0)
    return found | more


# -- inputs ---------------------------------------------------------------------------------------


def tokens(size: Size, most: int = 1 << 20) -> torch.Tensor:
    return torch.randint(3, size.words, (size.batch, min(size.tokens, most)))


def _text(size: Size, config: Any) -> dict[str, Any]:
    ids = tokens(size)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pair(size: Size, config: Any) -> dict[str, Any]:
    return {**_text(size, config), "decoder_input_ids": tokens(size)}


def _sound(size: Size, config: Any) -> dict[str, Any]:
    frames = 2 * config.max_source_positions
    return {"input_features": torch.randn(size.batch, config.num_mel_bins, frames),
            "decoder_input_ids": tokens(size, config.max_target_positions)}  # fmt: skip


def _image(size: Size, config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(size.batch, 3, size.pixels, size.pixels)}


def _both(size: Size, config: Any) -> dict[str, Any]:
    ids = tokens(size, 77)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **_image(size, config)}


INPUTS: dict[str, Callable[[Size, Any], dict[str, Any]]] = {
    "text": _text, "cache": _text, "pair": _pair, "sound": _sound, "image": _image, "both": _both,
    "ids": lambda size, config: {"input_ids": tokens(size)},
    "decode": lambda size, config: {
        "input_ids": torch.randint(3, size.words, (size.batch, 1)),
        "position_ids": torch.full((size.batch, 1), FILLED)},
}  # fmt: skip
FILLED = 8  # tokens that the cache has before a step


class DecodeStep(nn.Module):
    """The ninth token, each time: the cache is told that it has eight. The cache goes where the
    module goes."""

    def __init__(self, model: nn.Module, size: Size) -> None:
        from transformers import StaticCache

        super().__init__()
        self.model = model
        config: Any = model.config
        self.cache: Any = StaticCache(config=config, max_cache_len=size.tokens)
        ids = torch.randint(3, size.words, (size.batch, FILLED))
        with torch.no_grad():
            model(input_ids=ids, past_key_values=self.cache, use_cache=True)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for layer in self.cache.layers:
            for name, value in vars(layer).items():
                if isinstance(value, torch.Tensor):
                    setattr(layer, name, fn(value))
            layer.device = layer.keys.device  # where it makes positions
        return super()._apply(fn, recurse)

    def forward(self, **given: Any) -> Any:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(FILLED)
        return self.model(past_key_values=self.cache, use_cache=True, **given).logits
