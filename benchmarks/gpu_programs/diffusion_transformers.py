"""Diffusion transformers of diffusers, with random weights and fewer layers than published."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_programs.diffusion_models import made, steps
from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train


@program
def transformer_sd3(compile: Compile, place: Place) -> Step:
    """Stable Diffusion 3.5 medium: joint attention, RMS norms of queries and keys."""
    heads, size, text, pooled = place.of((2, 16, 32, 24), (24, 128, 4096, 2048))
    model = made(
        place, "SD3Transformer2DModel", sample_size=size, num_layers=place.of(2, 6),
        num_attention_heads=heads, attention_head_dim=place.of(16, 64), joint_attention_dim=text,
        caption_projection_dim=heads * place.of(16, 64), pooled_projection_dim=pooled,
        pos_embed_max_size=size, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip
    return infer(
        compile, model, place.normal(2, 16, size, size), place.normal(2, place.of(7, 333), text),
        place.normal(2, pooled), steps(place, 2), return_dict=False,
    )  # fmt: skip


@program
def transformer_pixart(compile: Compile, place: Place) -> Step:
    """PixArt-Sigma: cross attention with a mask over the text, one modulation for all blocks."""
    heads, size, text = place.of((2, 16, 32), (16, 128, 4096))
    width = heads * place.of(16, 72)
    model = made(
        place, "PixArtTransformer2DModel", num_attention_heads=heads, num_layers=place.of(2, 8),
        attention_head_dim=place.of(16, 72), cross_attention_dim=width, sample_size=size,
        caption_channels=text, use_additional_conditions=False,
    )  # fmt: skip
    mask = (torch.arange(40, device=place.device) < 29).expand(2, 40).to(place.half)
    return infer(
        compile, model, place.normal(2, 4, size, size), place.normal(2, 40, text), steps(place, 2),
        {"resolution": None, "aspect_ratio": None}, encoder_attention_mask=mask, return_dict=False,
    )  # fmt: skip


@program
def transformer_sana(compile: Compile, place: Place) -> Step:
    """Sana: linear attention in float32 and a gated depth-wise feed-forward."""
    heads, size, text = place.of((2, 8, 32), (70, 32, 2304))
    width = heads * place.of(16, 32)
    model = made(
        place, "SanaTransformer2DModel", num_attention_heads=heads, num_layers=place.of(2, 6),
        attention_head_dim=place.of(16, 32), cross_attention_dim=width, sample_size=size,
        num_cross_attention_heads=place.of(2, 20), cross_attention_head_dim=place.of(16, 112),
        caption_channels=text,
    )  # fmt: skip
    return infer(compile, model, place.normal(4, 32, size, size), place.normal(4, 40, text),
                 steps(place, 4), return_dict=False)  # fmt: skip


@program
def transformer_lumina2(compile: Compile, place: Place) -> Step:
    """Lumina 2: refiners of text and image, then joint layers; captions of several lengths."""
    heads, size, text = place.of((4, 16, 32), (24, 64, 2304))
    head = place.of(24, 96)
    model = made(
        place, "Lumina2Transformer2DModel", sample_size=size, hidden_size=heads * head,
        num_layers=place.of(2, 6), num_refiner_layers=1, num_attention_heads=heads,
        num_kv_heads=heads // 2, axes_dim_rope=(head // 3,) * 3, axes_lens=(64, 64, 64),
        cap_feat_dim=text, multiple_of=place.of(16, 256),
    )  # fmt: skip
    lengths = torch.tensor([[9], [16]], device=place.device)
    mask = (torch.arange(16, device=place.device) < lengths).long()
    return infer(compile, model, place.normal(2, 16, size, size), place.normal(2) + 0.5,
                 place.normal(2, 16, text), mask, return_dict=False)  # fmt: skip


@program
def transformer_auraflow_train(compile: Compile, place: Place) -> Step:
    """AuraFlow: two joint blocks, then blocks over text and image in one sequence, trained."""
    heads, size, text = place.of((2, 16, 32), (12, 64, 2048))
    width = heads * place.of(16, 128)
    model = made(
        place, "AuraFlowTransformer2DModel", sample_size=size, num_mmdit_layers=place.of(1, 2),
        num_single_dit_layers=place.of(1, 4), attention_head_dim=place.of(16, 128),
        num_attention_heads=heads, joint_attention_dim=text, caption_projection_dim=width,
        pos_embed_max_size=place.of(64, 1024),
    )  # fmt: skip
    return train(compile, model, place.normal(2, 4, size, size), place.normal(2, 40, text),
                 place.normal(2))  # fmt: skip


@program
def transformer_wan(compile: Compile, place: Place) -> Step:
    """Wan 2.1 of 1.3 billion: rotary positions in three axes, cross attention to the text."""
    heads, text = place.of((2, 32), (12, 4096))
    model = made(
        place, "WanTransformer3DModel", num_attention_heads=heads, text_dim=text,
        attention_head_dim=place.of(24, 128), num_layers=place.of(2, 5),
        ffn_dim=place.of(64, 8960), freq_dim=place.of(32, 256), rope_max_seq_len=place.of(32, 1024),
    )  # fmt: skip
    latents = place.normal(1, 16, place.of(2, 9), place.of(8, 60), place.of(8, 80))
    return infer(compile, model, latents, steps(place, 1), place.normal(1, place.of(9, 512), text),
                 return_dict=False)  # fmt: skip


@program
def transformer_ltx_train(compile: Compile, place: Place) -> Step:
    """LTX-Video: tokens of heavily compressed films, trained."""
    heads, text = place.of((2, 32), (32, 4096))
    frames, height, width = place.of((2, 4, 4), (9, 16, 24))
    model = made(
        place, "LTXVideoTransformer3DModel", in_channels=place.of(8, 128),
        num_layers=place.of(2, 4), out_channels=place.of(8, 128), num_attention_heads=heads,
        caption_channels=text,
        attention_head_dim=place.of(16, 64), cross_attention_dim=heads * place.of(16, 64),
    )  # fmt: skip
    tokens = place.normal(1, frames * height * width, place.of(8, 128))
    mask = torch.ones(1, 64, device=place.device, dtype=place.half)
    return train(compile, model, tokens, place.normal(1, 64, text), steps(place, 1), mask,
                 num_frames=frames, height=height, width=width)  # fmt: skip


@program
def transformer_cogvideox(compile: Compile, place: Place) -> Step:
    """CogVideoX: text and film in one sequence, rotary positions given from outside."""
    heads, text = place.of((2, 32), (30, 4096))
    frames, height, width, head = place.of((3, 8, 8, 16), (5, 48, 64, 64))
    model = made(
        place, "CogVideoXTransformer3DModel", num_attention_heads=heads, attention_head_dim=head,
        time_embed_dim=place.of(32, 512), text_embed_dim=text, num_layers=place.of(2, 6),
        sample_width=width, sample_height=height, sample_frames=4 * (frames - 1) + 1,
        max_text_seq_length=place.of(9, 226), use_rotary_positional_embeddings=True,
    )  # fmt: skip
    angles = place.normal(frames * (height // 2) * (width // 2), head, dtype=torch.float32)
    return infer(
        compile, model, place.normal(1, frames, 16, height, width),
        place.normal(1, place.of(9, 226), text), steps(place, 1),
        image_rotary_emb=(angles.cos(), angles.sin()), return_dict=False,
    )  # fmt: skip


@program
def transformer_mochi(compile: Compile, place: Place) -> Step:
    """Mochi: asymmetric streams of film and text, attention over the text that is there."""
    heads, text = place.of((2, 32), (24, 4096))
    model = made(
        place, "MochiTransformer3DModel", num_attention_heads=heads, text_embed_dim=text,
        attention_head_dim=place.of(16, 128), num_layers=place.of(2, 4),
        pooled_projection_dim=place.of(16, 1536), time_embed_dim=place.of(32, 256),
        max_sequence_length=place.of(16, 256),
    )  # fmt: skip
    words = place.of(16, 256)
    mask = (torch.arange(words, device=place.device) < words // 2)[None]
    latents = place.normal(1, 12, place.of(2, 5), place.of(8, 48), place.of(8, 64))
    return infer(compile, model, latents, place.normal(1, words, text), steps(place, 1), mask,
                 return_dict=False)  # fmt: skip


@program
def transformer_flux_lora_train(compile: Compile, place: Place) -> Step:
    """FLUX with low-rank adapters of peft at its attention, of which only those learn."""
    from peft import LoraConfig

    heads, text, pooled = place.of((2, 32, 24), (24, 4096, 768))
    head = place.of(16, 128)
    model = made(
        place, "FluxTransformer2DModel", in_channels=64, num_layers=place.of(1, 2),
        num_single_layers=place.of(1, 4), attention_head_dim=head, num_attention_heads=heads,
        joint_attention_dim=text, pooled_projection_dim=pooled, guidance_embeds=True,
        axes_dims_rope=place.of((4, 6, 6), (16, 56, 56)),
    )  # fmt: skip
    model.requires_grad_(False)
    names = ["to_q", "to_k", "to_v", "to_out.0"]
    model.add_adapter(LoraConfig(r=16, target_modules=names, init_lora_weights=False))
    model.to(place.device, place.half)
    size, words = place.of((4, 7), (48, 512))
    return train(
        compile, model, place.normal(1, size * size, 64), place.normal(1, words, text),
        place.normal(1, pooled), place.normal(1).sigmoid(), grid(place, size),
        torch.zeros(words, 3, device=place.device), place.normal(1).exp(), return_dict=False,
    )  # fmt: skip


def grid(place: Place, size: int) -> Tensor:
    """FLUX's positions of image tokens: zero, row, column."""
    line = torch.arange(size, device=place.device, dtype=torch.float32)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3)


@program
def transformer_dit_train(compile: Compile, place: Place) -> Step:
    """DiT-L/2 over classes with zero-initialized modulation, trained."""
    heads, size, count = place.of((2, 8, 2), (16, 32, 16))
    model = made(
        place, "DiTTransformer2DModel", num_attention_heads=heads, num_layers=place.of(2, 8),
        attention_head_dim=place.of(16, 64), sample_size=size, out_channels=8,
    ).eval()  # fmt: skip
    return train(compile, model, place.normal(count, 4, size, size), steps(place, count),
                 place.integers(1000, count))  # fmt: skip


@program
def transformer_hunyuan_video(compile: Compile, place: Place) -> Step:
    """HunyuanVideo: token refiner, joint and single blocks, guidance as an embedding."""
    heads, text, pooled = place.of((2, 32, 24), (24, 4096, 768))
    model = made(
        place, "HunyuanVideoTransformer3DModel", num_attention_heads=heads,
        attention_head_dim=place.of(16, 128), num_layers=place.of(1, 2),
        num_single_layers=place.of(1, 3), num_refiner_layers=1, text_embed_dim=text,
        pooled_projection_dim=pooled, rope_axes_dim=place.of((4, 6, 6), (16, 56, 56)),
    )  # fmt: skip
    words = place.of(9, 256)
    mask = (torch.arange(words, device=place.device) < words - 5)[None].long()
    latents = place.normal(1, 16, place.of(2, 5), place.of(8, 48), place.of(8, 64))
    return infer(
        compile, model, latents, steps(place, 1), place.normal(1, words, text), mask,
        place.normal(1, pooled), place.normal(1).exp() * 1000, return_dict=False,
    )  # fmt: skip


@program
def transformer_qwen_image(compile: Compile, place: Place) -> Step:
    """Qwen-Image: rotary positions as complex numbers, made from a list of shapes."""
    heads, text, size = place.of((2, 32, 4), (24, 3584, 48))
    model = made(
        place, "QwenImageTransformer2DModel", num_layers=place.of(2, 4), num_attention_heads=heads,
        attention_head_dim=place.of(16, 128), joint_attention_dim=text,
        axes_dims_rope=place.of((4, 6, 6), (16, 56, 56)),
    )  # fmt: skip
    words = place.of(9, 300)
    mask = torch.ones(1, words, device=place.device, dtype=torch.bool)
    return infer(
        compile, model, place.normal(1, size * size, 64), place.normal(1, words, text), mask,
        place.normal(1).sigmoid(), [[(1, size, size)]], return_dict=False,
    )  # fmt: skip


@program
def transformer_z_image(compile: Compile, place: Place) -> Step:
    """Z-Image: lists of images and captions of several sizes, padded inside."""
    heads, text, size = place.of((4, 32, 16), (24, 2560, 96))
    head = place.of(24, 128)
    model = made(
        place, "ZImageTransformer2DModel", dim=heads * head, n_layers=place.of(2, 4),
        n_refiner_layers=1, n_heads=heads, n_kv_heads=heads, cap_feat_dim=text,
        axes_dims=place.of([8, 8, 8], [32, 48, 48]),
    )  # fmt: skip
    images: Any = [place.normal(16, 1, size, size) for _ in range(2)]
    captions = [place.normal(20, text), place.normal(35, text)]
    return infer(compile, model, images, place.normal(2).sigmoid(), captions, return_dict=False)


@program
def transformer_stable_audio(compile: Compile, place: Place) -> Step:
    """Stable Audio's transformer: grouped keys, partial rotary positions, prepended globals."""
    heads, size, text = place.of((4, 32, 32), (24, 1024, 768))
    head = place.of(16, 64)
    model = made(
        place, "StableAudioDiTModel", sample_size=size, num_layers=place.of(2, 12),
        attention_head_dim=head, num_attention_heads=heads, cross_attention_dim=text,
        num_key_value_attention_heads=heads // 2, time_proj_dim=place.of(32, 256),
        global_states_input_dim=2 * text,
        cross_attention_input_dim=text,
    )  # fmt: skip
    angles = place.normal(size + 1, head // 2, dtype=torch.float32)
    return infer(
        compile, model, place.normal(2, 64, size), place.normal(2), place.normal(2, 60, text),
        place.normal(2, 1, 2 * text), (angles.cos(), angles.sin()), return_dict=False,
    )  # fmt: skip
