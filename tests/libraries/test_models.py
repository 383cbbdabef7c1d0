"""Small models of other people's libraries, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.libraries.harness import Case, check_model, named, table

CASES, case = table()
pytestmark = pytest.mark.libraries
VIT = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}


def images(m: nn.Module) -> Any:
    return m(torch.randn(2, 3, 32, 32))


def words(m: nn.Module) -> Any:
    return m(torch.randint(0, 50, (2, 16)))


def graph_of(m: nn.Module) -> Any:
    return m(torch.randn(10, 8), torch.randint(0, 10, (2, 30)))


class Applied(nn.Module):
    """A linear layer, then a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = [function]

    def forward(self, x: torch.Tensor, *args: Any) -> Any:
        return self.function[0](self.linear(x), *args)


def twice(m: nn.Module) -> Any:
    return [m(torch.randn(4, 8)) for _ in range(2)]


# -- vision ----------------------------------------------------------------------------------------


@case("vit_pytorch")
def vit():
    from vit_pytorch import ViT
    return ViT(**VIT), images


@case("vit_pytorch", graphs=6)
def na_vit():
    from vit_pytorch.na_vit import NaViT
    mixed = [[(3, 32, 32), (3, 16, 24)], [(3, 24, 32)]]
    return NaViT(**VIT), lambda m: m([[torch.randn(size) for size in part] for part in mixed])


@case("vit_pytorch")
def cvt():
    from vit_pytorch.cvt import CvT
    sizes = {"s1_emb_dim": 16, "s2_emb_dim": 16, "s2_heads": 1, "s3_emb_dim": 16, "s3_heads": 1}
    return CvT(num_classes=5, s2_depth=1, s3_depth=1, **sizes), images


@case("torchvision", "timm")
def timm_convnext():
    import timm
    return timm.create_model("convnext_atto", num_classes=5), lambda m: m(torch.randn(2, 3, 64, 64))


@case("torchvision", "timm")
def timm_fastvit():
    import timm
    return timm.create_model("fastvit_t8", num_classes=5), lambda m: m(torch.randn(2, 3, 64, 64))


@case("torchvision", "timm")
def timm_losses():
    from timm.loss import BinaryCrossEntropy, JsdCrossEntropy, LabelSmoothingCrossEntropy
    smooth, binary, jsd = LabelSmoothingCrossEntropy(), BinaryCrossEntropy(smoothing=0.1), JsdCrossEntropy(num_splits=2)
    return Applied(lambda x, y: (smooth(x, y), binary(x, y), jsd(x, y[:2]))), (
        lambda m: m(torch.randn(4, 8), torch.randint(0, 8, (4,))))


@case("torchvision")
def torchvision_shufflenet():
    from torchvision.models import shufflenet_v2_x0_5
    return shufflenet_v2_x0_5(num_classes=4), images


@case("torchvision")
def torchvision_transforms():
    from torchvision.transforms import v2
    steps = v2.Compose([v2.Resize((16, 16), antialias=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    return nn.Sequential(nn.Conv2d(3, 3, 1), Through(steps)), images


class Through(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = [function]

    def forward(self, x: torch.Tensor) -> Any:
        return self.function[0](x)


@case("segment_anything", graphs=6, single=True)
def segment_anything():
    from segment_anything.modeling import (
        ImageEncoderViT,
        MaskDecoder,
        PromptEncoder,
        TwoWayTransformer,
    )

    class Sam(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = ImageEncoderViT(
                img_size=64, patch_size=16, embed_dim=16, depth=2, num_heads=2, out_chans=16, use_rel_pos=True,
                window_size=2, global_attn_indexes=(1,))
            self.prompt = PromptEncoder(
                embed_dim=16, image_embedding_size=(4, 4), input_image_size=(64, 64), mask_in_chans=4)
            transformer = TwoWayTransformer(depth=1, embedding_dim=16, mlp_dim=32, num_heads=2)
            self.decoder = MaskDecoder(transformer_dim=16, transformer=transformer, iou_head_hidden_dim=16)

        def forward(self, x, points, labels):
            sparse, dense = self.prompt(points=(points, labels), boxes=None, masks=None)
            return self.decoder(
                image_embeddings=self.image(x), image_pe=self.prompt.get_dense_pe(), multimask_output=True,
                sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense)

    return Sam(), lambda m: m(torch.randn(1, 3, 64, 64), torch.rand(1, 2, 2) * 64, torch.ones(1, 2))


@case("torchvision", "open_clip")
def open_clip():
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            vision = CLIPVisionCfg(layers=1, width=32, head_width=16, image_size=32, patch_size=8)
            text = CLIPTextCfg(context_length=8, vocab_size=50, width=32, heads=2, layers=1)
            self.clip, self.loss = CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text), ClipLoss()

        def forward(self, image, text):
            return self.loss(*self.clip(image, text))

    return Both(), lambda m: m(torch.randn(2, 3, 32, 32), torch.randint(0, 50, (2, 8)))


@case("torchvision", "piq")
def piq():
    import piq

    class Quality(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.conv(x).sigmoid()
            return piq.ssim(x, y, data_range=1.0), piq.psnr(x, y), piq.gmsd(x, y)

    return Quality(), lambda m: m(torch.rand(2, 3, 32, 32))


# -- diffusion -------------------------------------------------------------------------------------


@case("diffusers", "requests")
def diffusers_unet():
    from diffusers import UNet2DConditionModel
    model = UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(16, 32), cross_attention_dim=16, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    return model, lambda m: m(torch.randn(2, 4, 8, 8), 5, torch.randn(2, 6, 16)).sample


@case("diffusers", "requests")
def diffusers_vae():
    from diffusers import AutoencoderKL
    model = AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2, layers_per_block=1,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8)
    return model, lambda m: m(torch.randn(1, 3, 16, 16)).sample


@case("diffusers", "requests")
def diffusers_flux():
    from diffusers import FluxTransformer2DModel
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=[4, 4, 8])
    return model, lambda m: m(
        torch.randn(1, 16, 4), torch.randn(1, 5, 16), torch.randn(1, 16), torch.tensor([0.3]),
        img_ids=torch.zeros(16, 3), txt_ids=torch.zeros(5, 3)).sample


# -- language --------------------------------------------------------------------------------------


@case("x_transformers")
def x_transformers():
    from x_transformers import Decoder, TransformerWrapper
    layers = Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_flash=True)
    return TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers), words


@case("local_attention")
def local_attention():
    from local_attention import LocalTransformer
    sizes = {"num_tokens": 50, "dim": 32, "depth": 1, "max_seq_len": 64, "local_attn_window_size": 8}
    return LocalTransformer(causal=True, **sizes), lambda m: m(torch.randint(0, 50, (1, 64)))


@case("vector_quantize_pytorch", graphs=3)
def vector_quantize():
    from vector_quantize_pytorch import VectorQuantize
    return VectorQuantize(dim=16, codebook_size=32, decay=0.8), lambda m: m(torch.randn(1, 20, 16))


@case("accelerate", "peft", "requests")
def peft_lora():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    llama = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes))
    ids = torch.randint(0, 50, (2, 8))
    return get_peft_model(llama, config), lambda m: m(input_ids=ids, labels=ids).loss


@case("sentence_transformers", "requests", "sklearn")
def sentence_pooling():
    from sentence_transformers.models import Normalize, Pooling
    modes = ("mean", "cls", "max", "weightedmean", "lasttoken")

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), Normalize()
            self.poolings = [Pooling(8, pooling_mode=mode) for mode in modes]

        def forward(self, x, mask):
            x = self.linear(x)
            inputs = [{"token_embeddings": x, "attention_mask": mask} for _ in modes]
            return [self.norm(pool(each))["sentence_embedding"] for pool, each in zip(self.poolings, inputs)]

    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    return Pooled(), lambda m: m(torch.randn(2, 5, 8), mask)


# -- graphs, flows, equations ----------------------------------------------------------------------


@case("torch_geometric", "xxhash", "psutil", graphs=4)
def geometric_gat():
    from torch_geometric.nn import GAT
    return GAT(8, 16, 2, 4, heads=2, v2=True), graph_of


@case("torch_geometric", "xxhash", "psutil")
def geometric_sage():
    from torch_geometric.nn import GraphSAGE
    return GraphSAGE(8, 16, 2, 4), graph_of


@case("normflows", graphs=2)  # `forward` is bound to another object with the same dict
def normflows():
    import normflows as nf
    flows = []
    for _ in range(2):
        flows.append(nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 8, 2], init_zeros=False)))
        flows.append(nf.flows.Permute(2, mode="swap"))
    flow = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)
    flow.forward = flow.log_prob
    return flow, lambda m: m(torch.randn(5, 2))


@case("zuko")
def zuko():
    import zuko

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = zuko.flows.NSF(3, context=2, transforms=2, hidden_features=(8,))

        def forward(self, x, context):
            found = self.flow(context)
            return found.log_prob(x), found.rsample()

    return Flow(), lambda m: m(torch.randn(4, 3), torch.randn(4, 2))


@case("scipy", "torchdiffeq", graphs=12)
def torchdiffeq():
    from torchdiffeq import odeint

    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return odeint(lambda t, y: self.linear(y).tanh(), x, torch.linspace(0, 1, 4), method="rk4")

    return Solved(), lambda m: m(torch.randn(3, 4))


@case("e3nn", "scipy", graphs=2)  # makes instances of classes derived from tuple
def e3nn():
    from e3nn import o3

    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = o3.Linear("2x0e+1x1o", "1x0e+1x1o")
            self.product = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "1x0e")

        def forward(self, x):
            return self.product(x, self.linear(x)), o3.spherical_harmonics([0, 1, 2], x[:, :3], True)

    return Rotated(), lambda m: m(torch.randn(4, 5))


@case("pyro")
def pyro():
    import pyro.distributions as dist
    return Applied(lambda h: (
        dist.Normal(h, 1.0).to_event(1).log_prob(h * 2), dist.Dirichlet(h.exp()).log_prob(torch.ones(8) / 8))), twice


@case("tensordict")
def tensordict():
    from tensordict import TensorDict

    def doubled(x):
        data = TensorDict({"a": x, "b": x * 3}, batch_size=[4])
        data["c"] = data["a"] + data["b"]
        return data.apply(lambda t: t * 2)["c"], data.batch_size
    return Applied(doubled), twice


@case("gymnasium", "stable_baselines3", single=True)
def stable_baselines():
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticPolicy
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)

    class Evaluated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = ActorCriticPolicy(*spaces, lambda _: 1e-3)

        def forward(self, seen, actions):
            return self.policy.evaluate_actions(seen, actions)

    return Evaluated(), lambda m: m(torch.randn(5, 4), torch.randint(0, 2, (5,)))


@case("torchmetrics", "lightning_utilities", graphs=3)
def torchmetrics():
    from torchmetrics.functional import accuracy, f1_score
    options = {"task": "multiclass", "num_classes": 8}
    return Applied(lambda x, y: (F.cross_entropy(x, y), accuracy(x, y, **options), f1_score(x, y, **options))), (
        lambda m: m(torch.randn(6, 8), torch.randint(0, 8, (6,))))


# -- configurations, type checkers, notations ------------------------------------------------------


@case("einx")
def einx():
    import einx

    def program(x):
        y = einx.rearrange("a (b c) -> b a c", x, b=2)
        return y, einx.sum("[a] b", x), einx.dot("a b, c b -> a c", x, x), einx.softmax("a [b]", x)
    return Applied(program), lambda m: [m(torch.randn(4, 8)) for _ in range(12)]


@case("beartype", graphs=3)
def beartype():
    from beartype import beartype as checked

    @checked
    def scaled(x: torch.Tensor, k: int = 2, names: list[str] | None = None) -> torch.Tensor:
        return x * k + len(names or ())
    return Applied(lambda x: scaled(x, 3, ["a"]) + scaled(x)), twice


@case("jaxtyping", "wadler_lindig", "beartype", graphs=2)
def jaxtyping():
    from beartype import beartype as checked
    from jaxtyping import Float, jaxtyped

    matrix, rows = Float[torch.Tensor, "rows columns"], Float[torch.Tensor, "rows"]  # noqa: F821, F722

    @jaxtyped(typechecker=checked)
    def dot(x: matrix, y: matrix) -> rows:
        return (x * y).sum(1)
    return Applied(lambda x: dot(x, x.relu())), twice


@case("attr", graphs=2)
def attrs():
    import attr

    @attr.define
    class Config:
        scale: float = 2.0
        names: list[str] = attr.field(factory=list)
    config = Config()
    return Applied(lambda x: x * config.scale + len(config.names) + attr.evolve(config, scale=3.0).scale), twice


@case("pydantic")
def pydantic():
    from pydantic import BaseModel, Field

    class Config(BaseModel):
        scale: float = 2.0
        names: list[str] = Field(default_factory=lambda: ["a"])
        act: str = "relu"
    config = Config(scale=3)
    return Applied(lambda x: getattr(F, config.act)(x * config.scale) + len(config.names)), twice


@case("omegaconf", "antlr4", graphs=2)
def omegaconf():
    from omegaconf import OmegaConf
    config = OmegaConf.create({"model": {"act": "relu", "layers": [1, 2]}, "rate": 0.5})

    def program(x):
        for layer in config.model.layers:
            x = x * layer
        return getattr(F, config.model.act)(x) * config.rate
    return Applied(program), twice


@case("ml_collections", "absl")
def ml_collections():
    from ml_collections import ConfigDict
    config = ConfigDict({"scale": 1.5, "sub": {"a": 2}})
    return Applied(lambda x: x * config.scale + config.sub.a + len(config)), twice


@case("easydict")
def easydict():
    from easydict import EasyDict
    config = EasyDict(scale=1.5, sub={"a": 2})
    return Applied(lambda x: x * config.scale + EasyDict(a=config.sub.a).a), twice


@named(CASES)
def test_captured(case: Case) -> None:
    check_model(case, "eager")


@named(CASES)
def test_default_backend(case: Case) -> None:
    check_model(case, "inductor")
