"""Denoisers and autoencoders of diffusers, with random weights: images, films and sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train


def made(place: Place, name: str, **settings: Any) -> Any:
    """A model of diffusers, on the device and in the dtype of the place."""
    import diffusers

    with torch.device(place.device):
        return getattr(diffusers, name)(**settings).to(place.device, place.half)


def steps(place: Place, count: int) -> Tensor:
    """Integer time steps of a batch."""
    return place.integers(1000, count)


def conditional(place: Place, **more: Any) -> dict[str, Any]:
    """Settings of the UNet of Stable Diffusion 1.5."""
    return {
        "sample_size": place.of(16, 64), "cross_attention_dim": place.of(32, 768),
        "block_out_channels": place.of((32, 64), (320, 640, 1280, 1280)),
        "down_block_types": ("CrossAttnDownBlock2D",) * place.of(1, 3) + ("DownBlock2D",),
        "attention_head_dim": 8, "layers_per_block": place.of(1, 2), **more,
    }  # fmt: skip


def ups(place: Place) -> tuple[str, ...]:
    return ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * place.of(1, 3)


@program
def unet_sd15(compile: Compile, place: Place) -> Step:
    """Stable Diffusion 1.5's UNet, a batch of two for guidance."""
    model = made(place, "UNet2DConditionModel", **conditional(place, up_block_types=ups(place)))
    size, width = place.of((16, 32), (64, 768))
    latents, text = place.normal(4, 4, size, size), place.normal(4, 77, width)
    return infer(compile, model, latents, steps(place, 4), text, return_dict=False)


@program
def unet_sdxl_train(compile: Compile, place: Place) -> Step:
    """SDXL's kind of UNet with micro-conditioning, fewer transformer layers, trained."""
    channels = place.of((32, 64), (320, 640, 1280))
    heads, layers = place.of((2, 4), (5, 10, 20)), place.of((1, 2), (1, 2, 4))
    kinds = place.of(2, 3)
    width, size = place.of((32, 16), (2048, 64))
    model = made(
        place, "UNet2DConditionModel", sample_size=size, block_out_channels=channels,
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * (kinds - 1)),
        up_block_types=(*("CrossAttnUpBlock2D",) * (kinds - 1), "UpBlock2D"),
        attention_head_dim=heads, transformer_layers_per_block=layers, use_linear_projection=True,
        cross_attention_dim=width, addition_embed_type="text_time", addition_time_embed_dim=32,
        projection_class_embeddings_input_dim=6 * 32 + 64, layers_per_block=place.of(1, 2),
    )  # fmt: skip
    added = {"text_embeds": place.normal(2, 64), "time_ids": place.normal(2, 6)}
    return train(compile, model, place.normal(2, 4, size, size), steps(place, 2),
                 place.normal(2, 77, width), added_cond_kwargs=added)  # fmt: skip


@program
def unet_controlnet(compile: Compile, place: Place) -> Step:
    """ControlNet's residuals added in the UNet, both compiled, two calls a step."""
    settings = conditional(place)
    settings.pop("sample_size")
    unet = made(place, "UNet2DConditionModel", **settings, up_block_types=ups(place)).eval()
    control = made(
        place,
        "ControlNetModel",
        **settings,
        conditioning_embedding_out_channels=place.of((16, 32), (16, 32, 96, 256)),
    )
    size, width = place.of((16, 32), (64, 768))
    latents, text = place.normal(2, 4, size, size), place.normal(2, 77, width)
    picture = place.normal(2, 3, size * place.of(2, 8), size * place.of(2, 8))
    denoise, guide, when = compile(unet), compile(control.eval()), steps(place, 2)

    @torch.no_grad()
    def step() -> Any:
        down, middle = guide(latents, when, text, picture, 0.8, return_dict=False)
        return denoise(latents, when, text, down_block_additional_residuals=down,
                       mid_block_additional_residual=middle, return_dict=False)  # fmt: skip

    return step


@program
def unet_ip_adapter(compile: Compile, place: Place) -> Step:
    """A UNet whose cross attention also reads an image's tokens, with a mask over them."""
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0
    from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection

    model = made(place, "UNet2DConditionModel", **conditional(place, up_block_types=ups(place)))
    size, width, seen = place.of((16, 32, 24), (64, 768, 1024))
    processors: dict[str, Any] = {}
    for name, processor in model.attn_processors.items():
        if name.endswith("attn2.processor"):
            wide = model.get_submodule(name.removesuffix(".processor")).to_q.out_features
            processor = IPAdapterAttnProcessor2_0(wide, width, num_tokens=(4,))
        processors[name] = processor
    model.set_attn_processor(processors)
    projection = ImageProjection(seen, width, num_image_text_embeds=4)
    model.encoder_hid_proj = MultiIPAdapterImageProjection([projection])
    model.config.encoder_hid_dim_type = "ip_image_proj"
    model.to(place.device, place.half)
    added = {"image_embeds": [place.normal(2, 1, seen)]}
    latents, text = place.normal(2, 4, size, size), place.normal(2, 77, width)
    return infer(compile, model, latents, steps(place, 2), text, added_cond_kwargs=added)


@program
def unet_svd(compile: Compile, place: Place) -> Step:
    """Stable Video Diffusion's UNet: spatial and temporal layers, mixed by a learned factor."""
    frames, size, width = place.of((3, 16, 32), (8, 32, 1024))
    kind, kinds = "BlockSpatioTemporal", place.of(1, 3)
    model = made(
        place, "UNetSpatioTemporalConditionModel", sample_size=size, num_frames=frames,
        down_block_types=(*(f"CrossAttnDown{kind}",) * kinds, f"Down{kind}"),
        up_block_types=(f"Up{kind}", *(f"CrossAttnUp{kind}",) * kinds),
        block_out_channels=place.of((32, 64), (320, 640, 1280, 1280)), cross_attention_dim=width,
        num_attention_heads=place.of((2, 4), (5, 10, 20, 20)), layers_per_block=place.of(1, 2),
        addition_time_embed_dim=32, projection_class_embeddings_input_dim=96,
    )  # fmt: skip
    return infer(compile, model, place.normal(1, frames, 8, size, size), steps(place, 1),
                 place.normal(1, 1, width), place.normal(1, 3), return_dict=False)  # fmt: skip


@program
def unet_motion_train(compile: Compile, place: Place) -> Step:
    """AnimateDiff's UNet with motion modules after each block, trained."""
    frames, size, width = place.of((3, 16, 32), (8, 32, 768))
    kinds = place.of(1, 3)
    model = made(
        place, "UNetMotionModel", sample_size=size, cross_attention_dim=width,
        down_block_types=("CrossAttnDownBlockMotion",) * kinds + ("DownBlockMotion",),
        up_block_types=("UpBlockMotion",) + ("CrossAttnUpBlockMotion",) * kinds,
        block_out_channels=place.of((32, 64), (320, 640, 1280, 1280)), layers_per_block=1,
        num_attention_heads=8, motion_num_attention_heads=8,
    )  # fmt: skip
    return train(compile, model, place.normal(1, 4, frames, size, size), steps(place, 1),
                 place.normal(frames, 77, width))  # fmt: skip


@program
def unet_pixels_train(compile: Compile, place: Place) -> Step:
    """The UNet of unconditional DDPM on pixels, group norm everywhere, trained."""
    model = made(
        place, "UNet2DModel", sample_size=place.of(16, 64),
        block_out_channels=place.of((32, 64), (128, 256, 256, 512)),
        down_block_types=("DownBlock2D",) * place.of(1, 3) + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * place.of(1, 3),
        resnet_time_scale_shift="scale_shift", num_class_embeds=10,
    )  # fmt: skip
    count, size = place.of((2, 16), (16, 64))
    return train(compile, model, place.normal(count, 3, size, size), steps(place, count),
                 class_labels=place.integers(10, count))  # fmt: skip


@program
def unet_cascade(compile: Compile, place: Place) -> Step:
    """Stable Cascade's UNet: depth-wise convolutions, global response norm, attention."""
    width, size, count = place.of((32, 8, 1), (1024, 24, 4))
    model = made(
        place, "StableCascadeUNet", in_channels=16, out_channels=16, conditioning_dim=width,
        block_out_channels=(width, width), num_attention_heads=place.of((2, 2), (16, 16)),
        down_num_layers_per_block=place.of((1, 1), (2, 6)),
        up_num_layers_per_block=place.of((1, 1), (6, 2)),
        clip_text_in_channels=32, clip_text_pooled_in_channels=32, clip_image_in_channels=24,
        switch_level=[False], dropout=(0.0, 0.0),
    )  # fmt: skip
    return infer(compile, model, place.normal(count, 16, size, size), place.normal(count),
                 place.normal(count, 1, 32), clip_text=place.normal(count, 77, 32),
                 clip_img=place.normal(count, 1, 24), return_dict=False)  # fmt: skip


@program
def unet_uvit(compile: Compile, place: Place) -> Step:
    """aMUSEd's U-ViT over tokens of a codebook."""
    size, width, count = place.of((8, 32, 2), (32, 1024, 8))
    model = made(
        place, "UVit2DModel", hidden_size=width, cond_embed_dim=64, micro_cond_encode_dim=16,
        micro_cond_embed_dim=80, encoder_hidden_size=64, vocab_size=place.of(100, 8256),
        codebook_size=place.of(96, 8192), in_channels=width, block_out_channels=width,
        num_res_blocks=1, block_num_heads=place.of(2, 16), num_hidden_layers=place.of(2, 12),
        num_attention_heads=place.of(2, 16), intermediate_size=place.of(64, 2816), sample_size=size,
    )  # fmt: skip
    tokens = place.integers(place.of(96, 8192), count, size, size)
    return infer(compile, model, tokens, place.normal(count, 77, 64), place.normal(count, 64),
                 place.normal(count, 5))  # fmt: skip


@program
def vae_kl_decode(compile: Compile, place: Place) -> Step:
    """The image decoder of Stable Diffusion: latents to pixels."""
    model = image_autoencoder(place)
    size = place.of(8, 64)
    return infer(compile, model.decode, place.normal(2, 4, size, size), return_dict=False)


@program
def vae_kl_train(compile: Compile, place: Place) -> Step:
    """The whole image autoencoder with a sample of the posterior, trained."""
    model, size = image_autoencoder(place), place.of(16, 256)
    return train(compile, model, place.normal(place.of(1, 4), 3, size, size), sample_posterior=True)


def image_autoencoder(place: Place) -> Any:
    channels = place.of((32, 64), (128, 256, 512, 512))
    return made(
        place, "AutoencoderKL", block_out_channels=channels, layers_per_block=place.of(1, 2),
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
    ).eval()  # fmt: skip


@program
def vae_dc(compile: Compile, place: Place) -> Step:
    """The deep-compression autoencoder: pixel shuffles and linear attention."""
    channels = place.of((16, 32), (128, 256, 512, 512))
    kinds = ("ResBlock",) * (len(channels) - 1) + ("EfficientViTBlock",)
    layers, scales = (1,) * len(channels), ((),) * (len(channels) - 1) + ((5,),)
    model = made(
        place, "AutoencoderDC", latent_channels=place.of(8, 32), attention_head_dim=place.of(8, 32),
        encoder_block_types=kinds, decoder_block_types=kinds, encoder_block_out_channels=channels,
        decoder_block_out_channels=channels, encoder_layers_per_block=layers,
        decoder_layers_per_block=layers, encoder_qkv_multiscales=scales,
        decoder_qkv_multiscales=scales,
    )  # fmt: skip
    size = place.of(16, 512)
    return infer(compile, model, place.normal(place.of(1, 2), 3, size, size), return_dict=False)


@program
def vae_oobleck(compile: Compile, place: Place) -> Step:
    """Stable Audio's decoder: snake activations and transposed convolutions."""
    width, ratios = place.of((8, [2, 4]), (128, [2, 4, 4, 8]))
    model = made(
        place, "AutoencoderOobleck", encoder_hidden_size=width, decoder_channels=width,
        downsampling_ratios=ratios, channel_multiples=[1, 2, 4, 8][: len(ratios)],
        decoder_input_channels=place.of(8, 64),
    )  # fmt: skip
    latents = place.normal(place.of(1, 2), place.of(8, 64), place.of(16, 256))
    return infer(compile, model.decode, latents, return_dict=False)


@program
def vae_wan_decode(compile: Compile, place: Place) -> Step:
    """Wan's film decoder, frame by frame, with a cache for its causal convolutions."""
    model = made(place, "AutoencoderKLWan", base_dim=place.of(8, 48), z_dim=16,
                 num_res_blocks=1, dim_mult=place.of([1, 2], [1, 2, 4, 4]),
                 temperal_downsample=place.of([True], [False, True, True]))  # fmt: skip
    latents = place.normal(1, 16, 3, place.of(4, 32), place.of(4, 32))
    return infer(compile, model.eval().decode, latents, return_dict=False)


@program
def vae_ltx_decode(compile: Compile, place: Place) -> Step:
    """LTX's film decoder: causal 3-D convolutions in one call."""
    channels = place.of((8, 16), (128, 256, 512))
    count = len(channels)
    model = made(
        place, "AutoencoderKLLTXVideo", latent_channels=place.of(8, 128),
        block_out_channels=channels, decoder_block_out_channels=channels,
        down_block_types=("LTXVideoDownBlock3D",) * count, layers_per_block=(1,) * (count + 1),
        decoder_layers_per_block=(1,) * (count + 1), spatio_temporal_scaling=(True,) * count,
        decoder_spatio_temporal_scaling=(True,) * count,
        decoder_inject_noise=(False,) * (count + 1), downsample_type=("conv",) * count,
        upsample_residual=(False,) * count, upsample_factor=(1,) * count,
    )  # fmt: skip
    latents = place.normal(1, place.of(8, 128), place.of(2, 4), place.of(4, 12), place.of(4, 16))
    return infer(compile, model.eval().decode, latents, return_dict=False)


@program
def vae_tiny_train(compile: Compile, place: Place) -> Step:
    """The tiny autoencoder TAESD, trained."""
    width, size = place.of((16, 32), (64, 256))
    model = made(place, "AutoencoderTiny", encoder_block_out_channels=(width,) * 4,
                 decoder_block_out_channels=(width,) * 4)  # fmt: skip
    both = torch.nn.Sequential(model.encoder, model.decoder)
    return train(compile, both, place.normal(place.of(1, 8), 3, size, size))


@program
def vae_vq_train(compile: Compile, place: Place) -> Step:
    """A vector-quantized autoencoder with its commitment loss, trained."""
    channels = place.of((32, 64), (128, 256, 256))
    model = made(
        place, "VQModel", block_out_channels=channels, num_vq_embeddings=place.of(32, 8192),
        down_block_types=("DownEncoderBlock2D",) * len(channels), norm_num_groups=32,
        up_block_types=("UpDecoderBlock2D",) * len(channels), latent_channels=4,
    )  # fmt: skip
    size = place.of(16, 256)
    return train(compile, model, place.normal(place.of(1, 4), 3, size, size))
