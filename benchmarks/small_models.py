"""Small models of transformers: the types that run with a small configuration.

`build(name, device)` gives the model (evaluation mode, no dropout, seeded weights) and its keyword
arguments, or raises `CannotBuild` with what every try said. Nothing is downloaded. A configuration
is tried in three ways: the finished default one with its numbers made small, one constructed from
small numbers (so that what it derives agrees with them), and the default with less depth only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.small_families import MADE_WITH, inputs_of_family, sizes_of_family
from benchmarks.small_inputs import Arguments, guesses

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

LARGEST = 60_000_000  # parameters; what does not shrink below is skipped


class CannotBuild(Exception):
    """No small configuration builds, or no guessed input runs."""


def fill(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


# Small sizes that agree with each other, by the names that configurations use.
WIDTH = fill(32, "hidden_size d_model n_embd dim embed_dim embedding_size word_embed_proj_dim")
DEPTH = fill(2, "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers")
DEPTH |= fill(2, "num_decoder_layers num_encoder_layers")
HEADS = fill(4, "num_attention_heads num_heads n_head n_heads")
HEADS |= fill(4, "encoder_attention_heads decoder_attention_heads")
FEED = fill(48, "intermediate_size d_ff ffn_dim hidden_dim n_inner d_inner share_expert_dim")
FEED |= fill(48, "encoder_ffn_dim decoder_ffn_dim")
RANKS = fill(16, "kv_lora_rank q_lora_rank projection_dim context_length")
PARTS = fill(8, "head_dim d_kv d_head v_head_dim qk_rope_head_dim qk_nope_head_dim state_size")
EXPERTS = fill(4, "num_experts num_local_experts n_routed_experts prediction_length rotary_dim")
CHOSEN = fill(2, "num_experts_per_tok num_experts_per_token num_codebooks type_vocab_size expand")
LONGEST = fill(64, "max_position_embeddings n_positions max_seq_len")
ROOM = fill(32, "max_source_positions max_target_positions moe_intermediate_size image_size")
TOKENS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOKENS |= {"decoder_start_token_id": 0}
OTHERS = {"num_key_value_heads": 2, "patch_size": 8, "sliding_window": 8}
SIZES = WIDTH | HEADS | FEED | RANKS | PARTS | EXPERTS | CHOSEN | LONGEST | ROOM | TOKENS | OTHERS

# What is always set: depth and vocabulary. The sizes are tried first and left as they are if the
# model does not run with them.
ALWAYS = DEPTH | {"vocab_size": 99}

# What constructed configurations have, too.
HYBRID = fill(8, "mamba_d_head mamba_d_state mamba_head_dim mamba_n_heads mamba_num_heads")
HYBRID |= fill(8, "mamba_chunk_size chunk_size ssm_state_size attention_chunk_size")
HYBRID |= fill(4, "mamba_dt_rank linear_num_heads linear_num_value_heads linear_num_key_heads")
HYBRID |= fill(8, "linear_head_dim linear_key_head_dim linear_value_head_dim index_head_dim")
HYBRID |= fill(4, "index_n_heads index_topk index_kpool") | fill(8, "global_head_dim laurel_rank")
HYBRID |= fill(2, "n_groups mamba_n_groups mamba_expand kv_n_heads attn_layer_period depth")
HYBRID |= fill(1, "n_group topk_group attn_layer_offset resampler_depth")
WIDER = fill(32, "lru_width moe_shared_expert_intermediate_size shared_intermediate_size")
WIDER |= fill(32, "moe_shared_intermediate_size out_hidden_size attention_hidden_size emb_dim")
WIDER |= fill(32, "expert_ffn_hidden_size ffn_hidden_size encoder_hidden_size projection_size")
WIDER |= fill(32, "upsample_initial_channel d_latents mlp_dim backbone_hidden_size")
WIDER |= fill(32, "image_token_embed_dim entity_emb_size iou_head_hidden_dim output_channels")
WIDER |= fill(32, "output_proj_dims fpn_hidden_size upsample_groups feature_projection_input_dim")
WIDER |= fill(8, "hidden_size_per_layer_input num_latents latent_query_num num_query_tokens")
WIDER |= fill(8, "lang_embed_dim spkr_embed_dim unit_embed_dim num_filters resampler_n_latents")
WIDER |= fill(8, "resampler_head_dim codebook_dim vector_quantization_hidden_dimension")
WIDER |= fill(4, "attention_heads resampler_n_heads speech_encoder_attention_heads scale")
WIDER |= fill(4, "t2u_encoder_attention_heads t2u_decoder_attention_heads adaptor_stride")
WIDER |= fill(48, "speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim")
WIDER |= fill(2, "layers speech_encoder_layers t2u_encoder_layers t2u_decoder_layers num_blocks")
WIDER |= fill(2, "num_self_attends_per_block num_self_attention_heads num_cross_attention_heads")
WIDER |= fill(99, "vocab_size_per_layer_input encoder_hash_byte_group_vocab n_words")
WIDER |= fill(99, "entity_vocab_size char_vocab_size t2u_vocab_size unit_hifi_gan_vocab_size")
WIDER |= fill(99, "text_vocab_size num_embeddings position_embedding_size")
WIDER |= fill(64, "codebook_size") | fill(32, "cross_hidden_size") | fill(8, "cross_head_dim")
WIDER |= fill(4, "cross_num_attention_heads cross_num_key_value_heads context_size")
ENTIRE = SIZES | ALWAYS | HYBRID | WIDER
SPECIAL = ("image", "video", "audio", "vision_start", "vision_end")  # tokens that no text has


def shrink(config: Any, values: dict[str, Any], depth: int = 0) -> None:
    """Sets the numbers of a configuration, and of those inside, that have a name in `values`."""
    from transformers import PretrainedConfig

    for name, old in list(vars(config).items()):
        if isinstance(old, PretrainedConfig):
            if depth < 3:
                shrink(old, values, depth + 1)
        elif "drop" in name and isinstance(old, float):
            assign(config, name, 0.0)
        elif name == "apply_spec_augment":
            assign(config, name, False)
        elif name in values and is_size(name, old):
            assign(config, name, values[name])
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and len(kinds) > 2:
        config.layer_types = kinds[:1] + kinds[-1:]


def constructed(default: Any, given: dict[str, Any]) -> Any:
    """A configuration of the same class, made with small numbers and with what is given.

    Of the layers, one of each kind is left.
    """
    from transformers import PretrainedConfig

    depth = next((getattr(default, name) for name in DEPTH if hasattr(default, name)), None)
    kept = kinds_of_layers(default, depth)
    made: dict[str, Any] = {}
    for name, old in vars(default).items():
        if isinstance(old, PretrainedConfig):
            made[name] = constructed(old, given.get(name, {}))
        elif name.startswith("_"):
            continue
        elif name in given:
            made[name] = given[name]
        elif "drop" in name and isinstance(old, float):
            made[name] = 0.0
        elif kept and name in DEPTH:
            made[name] = len(kept)
        elif name in ENTIRE and old is not None and is_size(name, old):
            made[name] = ENTIRE[name]
        elif kept and is_by_layer(old, depth):
            made[name] = [shortened(name, old[at]) for at in kept]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(old, int) and old >= 90:
            made[name] = special(name)
    if "kv_lora_rank" in made and "num_key_value_heads" in made:
        made["num_key_value_heads"] = made["num_attention_heads"]  # the latent serves all heads
    return type(default)(**given | made)


def is_by_layer(value: Any, depth: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == depth and len(value) > 2


def kinds_of_layers(config: Any, depth: Any) -> list[int]:
    """Indices of layers that differ from all before, by the lists with an item for each layer."""
    lists = [value for value in vars(config).values() if is_by_layer(value, depth)]
    first: dict[str, int] = {}
    for index, kinds in enumerate(zip(*lists, strict=True)):
        first.setdefault(repr(kinds), index)
    kept = list(first.values())
    return kept if len(kept) != 1 else kept * 2


def shortened(name: str, value: Any) -> Any:
    return ENTIRE[name] if name in ENTIRE and is_size(name, value) else value


def special(name: str) -> int:
    return next((90 + at for at, word in enumerate(SPECIAL) if name.startswith(word)), 98)


def is_size(name: str, old: object) -> bool:
    if old is None:
        return name == "head_dim"
    return isinstance(old, int | float) and not isinstance(old, bool)


def assign(config: Any, name: str, value: Any) -> None:
    """Some names are properties of others, and refuse."""
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        pass


Way = Callable[[str], Any]


def shrunken(values: dict[str, Any]) -> Way:
    def way(name: str) -> Any:
        config = default_of(name)
        shrink(config, values)
        return config

    return way


def anew(name: str) -> Any:
    return constructed(default_of(name), sizes_of_family(name))


def default_of(name: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(name, **MADE_WITH.get(name, {}))


def model_of(config: Any) -> nn.Module:
    from transformers import AutoModel

    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    if count > LARGEST:
        raise CannotBuild(f"{count / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model: nn.Module = AutoModel.from_config(config).float().eval()
    with torch.no_grad():  # zeros of an initialisation would hide what follows them
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def arguments_of(name: str, model: nn.Module) -> Arguments:
    """The first guess that the model runs with."""
    said = ""
    for arguments in (*inputs_of_family(name, model), *guesses(model)):
        try:
            with torch.no_grad():
                if tensors_in(model(**arguments)):
                    return arguments
        except Exception as error:
            said = said or f"{type(error).__name__}: {error}"
    raise CannotBuild(f"no input runs; the first says {said[:150]}")


def build(name: str, device: str) -> tuple[nn.Module, Arguments]:
    said = []
    ways = [shrunken(SIZES | ALWAYS), anew, shrunken(ALWAYS)]
    for way in [anew] if sizes_of_family(name) else ways:
        try:
            model = model_of(way(name))
            arguments = arguments_of(name, model)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}"[:150])
            continue
        return model.to(device), {key: value.to(device) for key, value in arguments.items()}
    raise CannotBuild("; ".join(said))


def tensors_in(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in tensors_in(part)]
    return []


def names() -> list[str]:
    """All model types, by the alphabet."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)
