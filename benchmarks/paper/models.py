"""The models of the tables: `build(name, ..)`; nothing is downloaded, weights are random.

Names are `suite:model`. `hf` is transformers: at size "small" any type of `small_models.py`, at the
others those of `CONFIGS`. `vision` and `timm` want torchvision and timm; `micro` are functions.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.small_models import CannotBuild, tensors_in
from benchmarks.small_models import build as build_small


@dataclass(frozen=True, slots=True)
class Size:
    """Of models of text: width, layers, heads, batch, tokens, vocabulary."""

    width: int
    layers: int
    heads: int
    batch: int
    tokens: int
    words: int


SIZES = {
    "small": Size(128, 2, 4, 2, 32, 1000),
    "real": Size(768, 4, 12, 2, 128, 30000),
    "large": Size(768, 12, 12, 8, 512, 30000),
}

TYPES = """albert bart bert big_bird blenderbot clip convbert convnext deberta-v2 distilbert
electra ernie fnet gemma2 gpt2 gpt_neo layoutlm llama longformer mamba mbart megatron-bert mistral
mixtral mobilebert modernbert opt pegasus phi3 qwen2 reformer roberta roformer swin t5 vit wav2vec2
whisper xlm-roberta xlnet""".split()
VISION = "alexnet mobilenet_v2 resnet18 resnet50 shufflenet_v2_x0_5 squeezenet1_1".split()
TIMM = """convnext_atto deit_tiny_patch16_224 efficientnet_b0 ghostnet_050 mobilevit_xxs nfnet_l0
resnet26 vit_tiny_patch16_224 mixer_s16_224 swin_tiny_patch4_window7_224""".split()
TIMED = """hf:bert hf:gpt2 hf:llama vision:resnet18 vision:resnet50
timm:vit_small_patch16_224""".split()
BATCHES = {"small": 1, "real": 4, "large": 64}  # of images

# Classes of transformers, and what their configurations are made with beside the size.
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", {}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {}),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {"embedding_size": 768}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "opt": ("OPTForCausalLM", "OPTConfig", {"word_embed_proj_dim": 768}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"num_key_value_heads": 4}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"num_key_value_heads": 4}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model or function with its arguments."""

    model: Any
    args: tuple[Any, ...]
    given: dict[str, Any]

    def run(self, call: Callable[..., Any]) -> Any:
        return call(*self.args, **self.given)


def build(
    name: str, size: str = "small", device: str = "cpu", dtype: torch.dtype = torch.float32,
    training: bool = False,
) -> Case:
    """Errors: CannotBuild, which says what is missing."""
    suite, _, model = name.rpartition(":")
    torch.manual_seed(0)
    found = BUILDERS[suite or "hf"](model, size)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() else None)

    if isinstance(found.model, nn.Module):
        found.model.to(device, dtype).train(training)
        _without_dropout(found.model)
    return Case(found.model, tuple(map(moved, found.args)),
                {key: moved(value) for key, value in found.given.items()})  # fmt: skip


def _without_dropout(model: nn.Module) -> None:
    """Results are compared, so nothing random is left in training."""
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    config = getattr(model, "config", None)
    for name, value in list(vars(config).items()) if config is not None else ():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def import_transformers() -> Any:
    """transformers, which imports torchvision where there is one."""
    if importlib.util.find_spec("torchvision"):
        import_torchvision()
    import transformers

    return transformers


def _transformer(name: str, size: str) -> Case:
    transformers = import_transformers()
    if size == "small":
        model, given = build_small(name, "cpu")
        return Case(model, (), given)
    if name not in CONFIGS:
        raise CannotBuild(f"no size {size!r} of {name!r}; there are {', '.join(CONFIGS)}")
    made, config, more = CONFIGS[name]
    own = SIZES[size]
    values = {
        "hidden_size": own.width, "n_embd": own.width, "vocab_size": own.words,
        "num_hidden_layers": own.layers, "n_layer": own.layers, "intermediate_size": 4 * own.width,
        "num_attention_heads": own.heads, "n_head": own.heads, "ffn_dim": 4 * own.width,
    }  # fmt: skip
    known = getattr(transformers, config)().to_dict()
    chosen = {key: value for key, value in values.items() if key in known} | more
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    chosen |= {key: value for key, value in ends.items() if key in known}
    model = getattr(transformers, made)(getattr(transformers, config)(**chosen, use_cache=False))
    return Case(model, (), {"input_ids": torch.randint(3, own.words, (own.batch, own.tokens))})


def import_torchvision() -> Any:
    """torchvision, also beside a build of torch for which its C++ library was not made: models
    need only that the names of its operators exist."""
    try:
        import torchvision
    except RuntimeError:
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in "nms qnms roi_align roi_pool ps_roi_align ps_roi_pool".split():
            for full in (operator, f"_{operator}_backward"):
                try:
                    library.define(f"{full}(Tensor x) -> Tensor")
                except RuntimeError:  # the library has got so far
                    pass
        import_torchvision.kept = library  # type: ignore[attr-defined]
        import torchvision
    return torchvision


def _vision(name: str, size: str) -> Case:
    try:
        models = import_torchvision().models
    except ImportError as error:
        raise CannotBuild(f"pip install torchvision: {error}") from error
    pixels = 96 if size == "small" else 224
    return Case(getattr(models, name)(weights=None), (_images(size, pixels),), {})


def _timm(name: str, size: str) -> Case:
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise CannotBuild(f"pip install timm torchvision: {error}") from error
    model = timm.create_model(name, pretrained=False)
    pixels = model.default_cfg["input_size"][-1]
    pixels = 128 if size == "small" and "224" not in name else pixels
    return Case(model, (_images(size, pixels),), {})


def _images(size: str, pixels: int) -> torch.Tensor:
    return torch.randn(BATCHES[size], 3, pixels, pixels)


# -- functions ------------------------------------------------------------------------------------


def _pointwise(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(a * 0.5 + b).mul(b.tanh())
    return gate * torch.exp(-a.square()) + F.silu(b) / (1 + a.abs())


def _normed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(a + b, (a.shape[-1],))) * torch.softmax(b, -1)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    length = q.shape[-2]
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, float("-inf"))
    return torch.softmax(scores, -1) @ v


def _micro(name: str, size: str) -> Case:
    rows, width = {"small": (8, 64), "real": (1024, 1024), "large": (8192, 4096)}[size]
    if name == "attended":
        heads = {"small": (1, 2, 16, 8), "real": (2, 12, 256, 64), "large": (8, 12, 512, 64)}
        return Case(_attended, tuple(torch.randn(heads[size]) for _ in range(3)), {})
    if name not in MICRO:
        raise CannotBuild(f"no function {name!r}; there are {', '.join(MICRO)}, attended")
    return Case(MICRO[name], (torch.randn(rows, width), torch.randn(rows, width)), {})


MICRO: dict[str, Callable[..., Any]] = {"pointwise": _pointwise, "normed": _normed}
BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "hf": _transformer, "vision": _vision, "timm": _timm, "micro": _micro,
}  # fmt: skip


def every() -> list[str]:
    """The names of all models at size "small"."""
    return [*(f"hf:{name}" for name in TYPES), *(f"vision:{name}" for name in VISION),
            *(f"timm:{name}" for name in TIMM),
            *(f"micro:{name}" for name in (*MICRO, "attended"))]  # fmt: skip


def step_of(case: Case, call: Callable[..., Any], training: bool) -> Callable[[], Any]:
    """One step: the results of inference, or the gradients of all parameters."""
    def infer() -> Any:
        with torch.no_grad():
            return tensors_in(case.run(call))

    def train() -> list[torch.Tensor]:
        parts = [t for t in tensors_in(case.run(call)) if t.requires_grad]
        loss = torch.stack([part.float().square().mean() for part in parts]).sum()
        wanted = [p for p in case.model.parameters() if p.requires_grad]
        return [g for g in torch.autograd.grad(loss, wanted, allow_unused=True) if g is not None]

    return train if training else infer
