"""The models of the tables: `build(name, ..)`; nothing is downloaded, weights are random.

Names are `suite:model`. `hf` is transformers: classes of `hf.py` at all sizes, and any type of
`small_models.py` at size "small". `vision` and `timm` want torchvision and timm; `micro` are
functions and small modules.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.paper import hf
from benchmarks.small_models import CannotBuild, tensors_in
from benchmarks.small_models import build as build_small

# Types beside the classes of `hf.py`.
TYPES = """bart clip convnext electra ernie layoutlm longformer mistral mixtral mobilebert reformer
roformer swin wav2vec2 xlm-roberta xlnet""".split()
VISION = """resnet18 mobilenet_v2 resnet50 alexnet densenet121 mnasnet1_0 squeezenet1_1 vgg16
shufflenet_v2_x0_5""".split()
TIMM = """resnet50 vit_base_patch16_224 convnext_tiny efficientnet_b0 deit_tiny_patch16_224
mixer_b16_224 nfnet_l0 ghostnet_100 mobilevit_s inception_v3""".split()
SMALL_TIMM = "convnext_atto resnet26 swin_tiny_patch4_window7_224".split()
INFERENCE, TRAINING = "inference", "training"
BATCHES = {"small": 2, "real": 4, "large": 64}  # of images
SMALL_BATCHES = {"vgg16": 16}  # of the size "large"


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
    import_transformers()
    if name in hf.MODELS:
        model, given = hf.build(name, size)
    elif size == "small":
        model, given = build_small(name, "cpu")
    else:
        raise CannotBuild(f"no size {size!r} of {name!r}; there are {', '.join(hf.MODELS)}")
    return Case(model, (), given)


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
    return Case(getattr(models, name)(weights=None), (_images(name, size, pixels),), {})


def _timm(name: str, size: str) -> Case:
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise CannotBuild(f"pip install timm torchvision: {error}") from error
    model = timm.create_model(name, pretrained=False)
    pixels = model.default_cfg["input_size"][-1]
    if size == "small" and "224" not in name and name != "inception_v3":
        pixels = 128
    return Case(model, (_images(name, size, pixels),), {})


def _images(name: str, size: str, pixels: int) -> torch.Tensor:
    count = SMALL_BATCHES.get(name, 64) if size == "large" else BATCHES[size]
    return torch.randn(count, 3, pixels, pixels)


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


def _written_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def _masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def _glu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Operators without a lowering: glu, logsumexp, smooth_l1_loss."""
    gated = F.glu(a + b, -1)
    loss = F.smooth_l1_loss(gated, b[:, : gated.shape[1]], reduction="none")
    return loss - gated.logsumexp(1, True)


def _added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _scaled_softmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(a * 0.125 + b.tril(), -1)


class Feed(nn.Module):
    """The feed-forward part of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return out


def _micro(name: str, size: str) -> Case:
    rows, width = {"small": (8, 64), "real": (1024, 1024), "large": (8192, 4096)}[size]
    if name == "attended":
        heads = {"small": (1, 2, 16, 8), "real": (2, 12, 256, 64), "large": (8, 12, 512, 64)}
        return Case(_attended, tuple(torch.randn(heads[size]) for _ in range(3)), {})
    if name in OF_STAGES and name != "glu":
        batch, heads, length, head = {
            "small": (1, 2, 16, 8), "real": (2, 12, 256, 64), "large": (8, 12, 512, 64)}[size]
        q, k, v = (torch.randn(batch, heads, length, head) for _ in range(3))
        bias = torch.randn(1, heads, length, length)
        seen = torch.arange(length) < torch.tensor([length, 3 * length // 4])[:batch, None]
        last = bias if name == "written_attention" else seen[:, None, None]
        return Case(OF_STAGES[name], (q, k, v, last), {})
    if name == "feed":
        return Case(Feed(width), (torch.randn(rows // 4, width),), {})
    if name == "hundred_layers":  # guards of two hundred parameters
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100)))
        return Case(layers, (torch.randn(4, 8),), {})
    if name not in MICRO | OF_STAGES:
        raise CannotBuild(f"no function {name!r}; there are {', '.join(MICRO_NAMES)}")
    return Case((MICRO | OF_STAGES)[name], (torch.randn(rows, width), torch.randn(rows, width)), {})


MICRO: dict[str, Callable[..., Any]] = {
    "pointwise": _pointwise, "normed": _normed, "softmax": _scaled_softmax, "added": _added,
}  # fmt: skip
# Programs that have what a stage of table 4 is for, which few models have on a CPU.
OF_STAGES: dict[str, Callable[..., Any]] = {
    "written_attention": _written_attention, "masked_attention": _masked_attention, "glu": _glu,
}  # fmt: skip
MODULES = ("feed", "hundred_layers")
MICRO_NAMES = (*MICRO, "attended", *MODULES)
BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "hf": _transformer, "vision": _vision, "timm": _timm, "micro": _micro,
}  # fmt: skip


def named(suite: str, names: Sequence[str]) -> list[str]:
    return [f"{suite}:{name}" for name in names]


def every() -> list[str]:
    """The names of all models at size "small"."""
    return [*named("hf", [*hf.MODELS, *TYPES]), *named("vision", VISION),
            *named("timm", [*TIMM, *SMALL_TIMM]), *named("micro", MICRO_NAMES)]  # fmt: skip


def timed() -> list[str]:
    """The names of all models at the other sizes, the most telling first."""
    vision = [name for name in VISION if "shufflenet" not in name]
    columns = named("hf", list(hf.MODELS)), named("timm", TIMM), named("vision", vision)
    images = [name for pair in zip_longest(*columns[1:]) for name in pair if name]
    mixed = [name for pair in zip_longest(columns[0], images) for name in pair if name]
    return [*mixed, *named("micro", MICRO_NAMES)]


def kinds_of(name: str) -> tuple[str, ...]:
    """What a model is measured in; functions have no parameters to train."""
    suite, _, model = name.rpartition(":")
    functions = suite == "micro" and model not in MODULES
    return (INFERENCE,) if functions or model in hf.WITHOUT_TRAINING else (INFERENCE, TRAINING)


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
