"""Small models of transformers: the types that run with a shrunken configuration, guessed inputs.

`build(name, device)` gives the model (evaluation mode, no dropout, seeded weights) and its keyword
arguments, or raises `CannotBuild` with what the last try said. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

LARGEST = 60_000_000  # parameters; what does not shrink below is skipped
Arguments = dict[str, torch.Tensor]


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
FEED = fill(48, "intermediate_size d_ff ffn_dim hidden_dim n_inner d_inner")
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


def guesses() -> Iterator[Arguments]:
    """Inputs to try, the commonest first."""
    ids = torch.randint(3, 90, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    image = torch.randn(2, 3, 32, 32)
    yield {"input_ids": ids, "attention_mask": mask}
    yield {"input_ids": ids}
    yield {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :7]}
    yield {"pixel_values": image}
    yield {"pixel_values": torch.randn(2, 3, 64, 64)}
    yield {"pixel_values": torch.randn(1, 3, 224, 224)}
    yield {"input_ids": ids, "attention_mask": mask, "pixel_values": image}
    yield {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(2, 3, 224, 224)}
    yield {"input_values": torch.randn(2, 1600)}
    yield {"input_values": torch.randn(2, 16000)}
    yield {"input_features": torch.randn(2, 80, 64), "decoder_input_ids": ids[:, :7]}
    yield {"input_features": torch.randn(2, 64, 80)}
    yield {"pixel_values": torch.randn(2, 4, 3, 32, 32)}
    yield {"inputs_embeds": torch.randn(2, 12, 32)}
    yield {"past_values": torch.randn(2, 32, 2)}


def model_of(name: str, values: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    shrink(config, values)
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


def arguments_of(model: nn.Module) -> Arguments:
    """The first guess that the model runs with."""
    said = ""
    for arguments in guesses():
        try:
            with torch.no_grad():
                if tensors_in(model(**arguments)):
                    return arguments
        except Exception as error:
            said = said or f"{type(error).__name__}: {error}"
    raise CannotBuild(f"no input runs; the first says {said[:150]}")


def build(name: str, device: str) -> tuple[nn.Module, Arguments]:
    said = []
    for values in (SIZES | ALWAYS, ALWAYS):
        try:
            model = model_of(name, values)
            arguments = arguments_of(model)
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
