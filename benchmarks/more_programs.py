"""Further programs of `benchmarks.programs_cpu`: video, images, detection, states, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, tuple[Any, ...]]
TOKENS = 1000  # of each vocabulary


class Call(nn.Module):
    """A model whose arguments go by names, and of whose results some are taken."""

    def __init__(self, inner: nn.Module, keys: str, taken: str, **fixed: Any) -> None:
        super().__init__()
        self.inner, self.keys, self.taken, self.fixed = inner, keys.split(), taken.split(), fixed

    def forward(self, *args: Any) -> tuple[Tensor, ...]:
        result = self.inner(**dict(zip(self.keys, args, strict=True)), **self.fixed)
        return tuple(getattr(result, name) for name in self.taken)


def states(model: nn.Module, length: int) -> Made:
    """A decoder's last hidden states."""
    called = Call(model, "input_ids", "last_hidden_state", use_cache=False)
    return called, (torch.randint(0, TOKENS, (1, length)),)


def features(model: nn.Module, side: int) -> Made:
    """What a model of images makes of one image."""
    return Call(model, "pixel_values", "last_hidden_state"), (torch.randn(1, 3, side, side),)


def boxes(model: nn.Module, side: int) -> Made:
    return Call(model, "pixel_values", "logits pred_boxes"), (torch.randn(1, 3, side, side),)


def vae_hunyuan() -> Made:
    from diffusers import AutoencoderKLHunyuanVideo

    model = AutoencoderKLHunyuanVideo(block_out_channels=(16, 32, 32, 32), layers_per_block=1,
                                      norm_num_groups=8, latent_channels=4)  # fmt: skip
    return Call(model, "sample", "sample"), (torch.randn(1, 3, 5, 48, 48),)


def dc_ae() -> Made:
    from diffusers import AutoencoderDC

    blocks = ("ResBlock", "EfficientViTBlock")
    model = AutoencoderDC(in_channels=3, latent_channels=8, attention_head_dim=8,
                          encoder_block_types=blocks, decoder_block_types=blocks,
                          encoder_block_out_channels=(32, 64), decoder_block_out_channels=(32, 64),
                          encoder_layers_per_block=(2, 2), decoder_layers_per_block=(2, 2),
                          encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
                          upsample_block_type="interpolate", downsample_block_type="conv",
                          scaling_factor=0.4)  # fmt: skip
    return Call(model, "sample", "sample"), (torch.randn(1, 3, 128, 128),)


def sd3() -> Made:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(sample_size=32, patch_size=2, in_channels=4, num_layers=3,
                                  attention_head_dim=32, num_attention_heads=8,
                                  joint_attention_dim=128, caption_projection_dim=256,
                                  pooled_projection_dim=64, out_channels=4)  # fmt: skip
    keys = "hidden_states encoder_hidden_states pooled_projections timestep"
    args = torch.randn(1, 4, 32, 32), torch.randn(1, 77, 128), torch.randn(1, 64)
    return Call(model, keys, "sample"), (*args, torch.tensor([10]))


def flux() -> Made:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(patch_size=1, in_channels=16, num_layers=2, num_single_layers=2,
                                   attention_head_dim=32, num_attention_heads=8,
                                   joint_attention_dim=128, pooled_projection_dim=64,
                                   axes_dims_rope=(8, 12, 12))  # fmt: skip
    keys = "hidden_states encoder_hidden_states pooled_projections timestep img_ids txt_ids"
    args = torch.randn(1, 256, 16), torch.randn(1, 64, 128), torch.randn(1, 64)
    places = torch.randn(256, 3), torch.zeros(64, 3)
    return Call(model, keys, "sample"), (*args, torch.tensor([1.0]), *places)


def convnext() -> Made:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 3, 2])
    return features(ConvNextModel(config), 192)


def yolos() -> Made:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
                         intermediate_size=768, image_size=[224, 224],
                         num_detection_tokens=50)  # fmt: skip
    return boxes(YolosForObjectDetection(config), 224)


def rtdetr() -> Made:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(embedding_size=32, hidden_sizes=[32, 64, 96, 128],
                                  depths=[1, 1, 1, 1], layer_type="basic",
                                  out_features=["stage2", "stage3", "stage4"])  # fmt: skip
    config = RTDetrConfig(backbone_config=backbone, encoder_in_channels=[64, 96, 128],
                          encoder_hidden_dim=64, d_model=64, encoder_ffn_dim=128,
                          decoder_ffn_dim=128, decoder_layers=2, num_queries=100,
                          decoder_in_channels=[64, 64, 64], feat_strides=[8, 16, 32],
                          encoder_attention_heads=4, decoder_attention_heads=4)  # fmt: skip
    return boxes(RTDetrForObjectDetection(config), 192)


def sam2() -> Made:
    from transformers import Sam2HieraDetConfig
    from transformers.models.sam2.modeling_sam2 import Sam2HieraDetModel

    config = Sam2HieraDetConfig(hidden_size=48, num_attention_heads=1, image_size=[256, 256],
                                blocks_per_stage=[1, 2, 3, 1],
                                embed_dim_per_stage=[48, 96, 192, 384],
                                num_attention_heads_per_stage=[1, 2, 4, 8],
                                window_size_per_stage=[8, 4, 8, 4],
                                global_attention_blocks=[4])  # fmt: skip
    return features(Sam2HieraDetModel(config), 256)


def mamba() -> Made:
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(hidden_size=256, num_hidden_layers=2, vocab_size=TOKENS, state_size=16)
    return states(MambaModel(config), 128)


def mamba2() -> Made:
    from transformers import Mamba2Config, Mamba2Model

    config = Mamba2Config(hidden_size=256, num_heads=16, head_dim=32, num_hidden_layers=2,
                          vocab_size=TOKENS, state_size=32, n_groups=2, chunk_size=64)  # fmt: skip
    return states(Mamba2Model(config), 256)


def rwkv() -> Made:
    from transformers import RwkvConfig, RwkvModel

    config = RwkvConfig(hidden_size=256, num_hidden_layers=2, vocab_size=TOKENS,
                        attention_hidden_size=256)  # fmt: skip
    return states(RwkvModel(config), 64)


def qwen3_moe() -> Made:
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(hidden_size=256, intermediate_size=512, moe_intermediate_size=256,
                            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=64, vocab_size=TOKENS, num_experts=8,
                            num_experts_per_tok=2)  # fmt: skip
    return states(Qwen3MoeModel(config), 128)


def qwen3_next() -> Made:
    """One layer of a gated delta rule and one of attention, both with experts."""
    from transformers import Qwen3NextConfig, Qwen3NextModel

    config = Qwen3NextConfig(hidden_size=128, intermediate_size=256, moe_intermediate_size=64,
                             shared_expert_intermediate_size=64, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                             vocab_size=TOKENS, num_experts=4, num_experts_per_tok=2,
                             linear_num_value_heads=4, linear_num_key_heads=2,
                             linear_key_head_dim=32, linear_value_head_dim=32,
                             layer_types=["linear_attention", "full_attention"])  # fmt: skip
    return states(Qwen3NextModel(config), 128)


def whisper_token() -> Made:
    """One token of a decoder behind 400 encoded frames."""
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(d_model=256, encoder_layers=1, decoder_layers=4, encoder_ffn_dim=1024,
                           decoder_ffn_dim=1024, encoder_attention_heads=4,
                           decoder_attention_heads=4, max_source_positions=400)  # fmt: skip
    called = Call(WhisperModel(config).decoder, "input_ids encoder_hidden_states",
                  "last_hidden_state", use_cache=False)  # fmt: skip
    return called, (torch.randint(0, TOKENS, (1, 1)), torch.randn(1, 400, 256))


class Edges(nn.Module):
    """Three layers of messages along edges, with their sums, means and maxima at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(128, 64) for _ in range(3))
        self.mix = nn.ModuleList(nn.Linear(256, 64) for _ in range(3))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, to = edge[0], edge[1]
        ones = torch.ones(to.shape[0], dtype=x.dtype)
        count = torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, to, ones).clamp(min=1)
        for up, mix in zip(self.up, self.mix, strict=True):
            message = F.relu(up(torch.cat((x[source], x[to]), -1)))
            total = torch.zeros_like(x).index_add_(0, to, message)
            places = to[:, None].expand_as(message)
            most = torch.zeros_like(x).scatter_reduce(0, places, message, "amax")
            x = x + F.relu(mix(torch.cat((x, total, total / count[:, None], most), -1)))
        return x


def edges() -> Made:
    return Edges(), (torch.randn(2000, 64), torch.randint(0, 2000, (2, 10000)))


class Speech(nn.Module):
    """Convolutions of a spectrogram, a GRU in both directions, an LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (1, 16):
            layers += [nn.Conv2d(channels, 16, (11, 5), (2, 1), (5, 2)), nn.BatchNorm2d(16),
                       nn.Hardtanh(0, 20)]  # fmt: skip
        self.convolutions = nn.Sequential(*layers)
        self.gru = nn.GRU(320, 128, 2, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(256, 128, batch_first=True)
        self.head = nn.Linear(128, 29)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.gru(self.convolutions(x).flatten(1, 2).transpose(1, 2))
        x, _ = self.lstm(x)
        return F.log_softmax(self.head(x), -1)


def speech() -> Made:
    return Speech(), (torch.randn(2, 1, 80, 100),)


MORE: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        vae_hunyuan, dc_ae, sd3, flux, convnext, yolos, rtdetr, sam2, mamba, mamba2,
        rwkv, qwen3_moe, qwen3_next, whisper_token, edges, speech,
    )
}  # fmt: skip
