"""What particular types of models need in order to be small: sizes that agree, and inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.small_inputs import Arguments, find, text

Sizes = dict[str, Any]

# What the finished default of a type is made with: it has none of its own.
MADE_WITH: dict[str, Sizes] = {
    "autoformer": {"prediction_length": 4},
    "informer": {"prediction_length": 4},
}

# -- sizes ----------------------------------------------------------------------------------------


def rope(**more: Any) -> Sizes:
    """Rotary positions; the sections of more than one axis share half a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | more}


AXES = rope(mrope_section=[2, 1, 1])
PARTIAL_AXES = rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5) | {"head_dim": 16}
LINEAR_AND_FULL = ["linear_attention", "full_attention"]
WINDOWS = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
WINDOWS |= {"image_size": 32, "patch_size": 2}
QUANTISED = {"base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1}
QUANTISED |= {"embed_dim": 16, "latent_channels": 16}
LAYERED = {"num_hidden_layers": 2, "layer_types": LINEAR_AND_FULL}

EFFICIENT = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320}
WITH_IMAGE = {"image_token_id": 90, "image_token_index": 90, "num_query_tokens": 8}
SEGMENTS = {"image_size": 32, "patch_size": 8}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
YARN |= {"max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}

SIZES: dict[str, Sizes] = {
    "autoformer": {"num_time_features": 1},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "blip-2": WITH_IMAGE,
    "bridgetower": {
        "hidden_size": 64,
        "vision_config": {"hidden_size": 64},
        "text_config": {"hidden_size": 64},
    },
    "bros": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 90}, "vq_config": QUANTISED | {"resolution": 32}},
    "clap": {
        "audio_config": {
            "spec_size": 64,
            "num_mel_bins": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "num_hidden_layers": 2,
            "patch_embeds_hidden_size": 16,
            "hidden_size": 32,
            "window_size": 4,
            "patch_size": 4,
        }
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": WINDOWS,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "efficientnet": EFFICIENT,
    "emu3": {"vocabulary_map": {"<image>": 90}, "vq_config": QUANTISED},
    "esm": {"vocab_size": 99, "mask_token_id": 3, "pad_token_id": 1},
    "esmc": {"num_key_value_heads": 4},
    "florence2": {
        "image_token_id": 90,
        "vision_config": {
            "embed_dim": [16, 32],
            "depths": [1, 1],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "window_size": 4,
            "max_position_embeddings": 20,
        },
    },
    "funnel": {"architectures": ["FunnelModel"], "block_sizes": [1, 1, 1]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm46v": {"text_config": AXES},
    "glm4v": {"text_config": AXES},
    "glm4v_moe": {"text_config": PARTIAL_AXES},
    "glm4v_moe_text": PARTIAL_AXES,
    "glm4v_text": AXES,
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0, "head_dim": 0}},
    "glm5_next_text": {"qk_rope_head_dim": 0, "head_dim": 0},
    "glm_image": {"text_config": AXES},
    "glm_image_text": AXES,
    "glm_ocr": {"text_config": AXES},
    "glmga": {"text_config": AXES},
    "granitemoehybrid": LAYERED,
    "hunyuan_vl": {"text_config": AXES | {"head_dim": 8}},
    "hunyuan_vl_text": AXES | {"head_dim": 8},
    "idefics": {"vision_config": {"embed_dim": 32, "image_size": 32, "patch_size": 8}},
    "informer": {"num_time_features": 1},
    "instructblip": WITH_IMAGE,
    "instructblipvideo": WITH_IMAGE | {"video_token_id": 90, "video_token_index": 90},
    "janus": {"vq_config": QUANTISED},
    "kosmos-2": {"text_config": {"embed_dim": 32}},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    | {"num_dense_layers": 1},
    "longcat_flash": {"moe_topk": 2, "zero_expert_num": 2, "num_layers": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "mistral4": rope(**YARN, partial_rotary_factor=0.5) | {"head_dim": 16},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron": {"num_key_value_heads": 2},
    "paddleocr_vl": {"text_config": AXES},
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32},
    "qwen2_5_vl": {"text_config": AXES, "vision_config": {"fullatt_block_indexes": [1]}},
    "qwen2_5_vl_text": AXES,
    "qwen2_vl": {"text_config": AXES, "vision_config": {"hidden_size": 32, "embed_dim": 32}},
    "qwen2_vl_text": AXES,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam": {
        "vision_config": SEGMENTS | {"num_pos_feats": 16, "window_size": 2},
        "prompt_encoder_config": SEGMENTS | {"image_embedding_size": 4},
    },
    "sam_hq": {
        "vision_config": SEGMENTS | {"num_pos_feats": 16, "window_size": 2},
        "prompt_encoder_config": SEGMENTS | {"image_embedding_size": 4},
        "mask_decoder_config": {"vit_dim": 32},
    },
    "step3p7": {"text_config": {"sliding_window": 8}},
    "swin": WINDOWS,
}


def sizes_of_family(name: str) -> Sizes:
    return SIZES.get(name, {})


# -- inputs ---------------------------------------------------------------------------------------


def inputs_of_family(name: str, model: nn.Module) -> Iterator[Arguments]:
    make = INPUTS.get(name)
    if make is not None:
        yield make(model.config)


def mask(length: int) -> torch.Tensor:
    value = torch.ones(2, length, dtype=torch.int64)
    value[1, length - length // 4 :] = 0
    return value


def text_and_boxes(config: Any) -> Arguments:
    return {"input_ids": text(), "attention_mask": mask(12), "bbox": torch.rand(2, 12, 8)}


def spectrum_and_mask(key: str, over: str, *shape: int) -> Any:
    return only(**{key: noise(2, *shape), over: lambda: mask(64).bool()})


def sections_of_image(config: Any) -> Arguments:
    """Flattened patches, some of which are padding."""
    side = find(config, "patch_size")
    return {
        "input_ids": text(),
        "pixel_values": torch.randn(2, 16, 3 * side * side),
        "pixel_attention_mask": mask(16),
        "spatial_shapes": torch.tensor([[4, 4], [3, 4]]),
    }


def without(key: str, make: Any) -> Any:
    return lambda config: {name: one for name, one in make(config).items() if name != key}


def patches_with_places(config: Any) -> Arguments:
    side = find(config, "patch_size")
    places = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy"), -1)
    places = places.reshape(1, 36, 2).repeat(2, 1, 1)
    return {"pixel_values": torch.rand(2, 36, 3 * side * side), "pixel_position_ids": places}


def with_places(count: int, *shape: int) -> Any:
    """A text that begins with places for the tokens of an image."""

    def make(config: Any) -> Arguments:
        ids = text(count + 6)
        ids[:, :count] = 90
        return {"input_ids": ids, "pixel_values": torch.randn(shape)}

    return make


def beside(make: Any, **more: Any) -> Any:
    return lambda config: make(config) | {name: one() for name, one in more.items()}


def only(**made: Any) -> Any:
    return lambda config: {name: one() for name, one in made.items()}


def noise(*shape: int) -> Any:
    return lambda: torch.randn(shape)


QUESTION = {"qformer_input_ids": lambda: text(5)}
GRIDS = {"grid_thw": lambda: torch.tensor([[1, 4, 4], [1, 4, 4]])}

INPUTS: dict[str, Any] = {
    "audioflamingo3_encoder": spectrum_and_mask(
        "input_features", "input_features_mask", 128, 64
    ),
    "blip-2": with_places(8, 2, 3, 32, 32),
    "bros": text_and_boxes,
    "clap": only(input_ids=text, input_features=noise(2, 1, 256, 16)),
    "gemma3n_audio": spectrum_and_mask("audio_mel", "audio_mel_mask", 64, 128),
    "gemma4_audio": spectrum_and_mask("input_features", "attention_mask", 64, 128),
    "gemma4_vision": patches_with_places,
    "idefics": only(
        input_ids=text,
        pixel_values=noise(2, 1, 3, 32, 32),
        image_attention_mask=lambda: torch.ones(2, 12, 1, dtype=torch.int64),
    ),
    "instructblip": beside(with_places(8, 2, 3, 32, 32), **QUESTION),
    "instructblipvideo": beside(with_places(16, 2, 2, 3, 32, 32), **QUESTION),
    "kosmos-2": only(
        input_ids=text,
        pixel_values=noise(2, 3, 32, 32),
        image_embeds_position_mask=lambda: (torch.arange(12) < 8).expand(2, 12).long(),
    ),
    "lightglue": only(pixel_values=noise(1, 2, 3, 64, 64)),
    "mgp-str": only(pixel_values=noise(2, 3, 32, 128)),
    "muse_glimmer_vision": only(pixel_values=noise(32, 384), **GRIDS),
    "perceiver": only(inputs=noise(2, 10, 32)),
    "sam": only(pixel_values=noise(2, 3, 32, 32), input_points=noise(2, 1, 3, 2)),
    "sam_hq": only(pixel_values=noise(2, 3, 32, 32), input_points=noise(2, 1, 3, 2)),
    "siglip2": sections_of_image,
    "siglip2_vision_model": without("input_ids", sections_of_image),
    "speecht5": only(input_values=noise(2, 12, 32), decoder_input_values=noise(2, 7, 32)),
}
