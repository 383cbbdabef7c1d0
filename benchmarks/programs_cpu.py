"""Audio, images, video, decoders, layers and optimizers on a CPU: eager, ours, torch.compile.

    python -m benchmarks.programs_cpu [--threads 2] [--seconds 8] [NAME[:train][:bf16] ...]

Each program runs in a process of its own, with empty caches. Its three forms take turns in blocks
of a few calls; milliseconds are medians of calls, and `of torch` is the median over the rounds of
our time over torch.compile's in the same round, with the quartiles. `error` is the largest
difference from eager in float64 over the largest value there, ours and eager's; strides of results
have to be those of eager. With --threads 1 --cpu-time, milliseconds are those of the processor,
which other processes disturb least. A name is one of `PROGRAMS`; some need diffusers.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.more_programs import MORE

Made = tuple[Any, tuple[Any, ...]]


class First(nn.Module):
    """A model whose result is one tensor of what `inner` returns."""

    def __init__(self, inner: nn.Module, *names: str, call: str = "", **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.call, self.fixed = inner, names, call, fixed

    def forward(self, *args: Any) -> Any:
        function = getattr(self.inner, self.call) if self.call else self.inner
        result = function(*args, **self.fixed)
        return tuple(getattr(result, name) for name in self.names) if self.names else result[0]


def encodec() -> Made:
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig(num_filters=16, hidden_size=64, codebook_dim=64))
    return First(model, "audio_values"), (torch.randn(1, 1, 24000),)


def encodec_decoder() -> Made:
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig(num_filters=16, hidden_size=64, codebook_dim=64))
    return model.decoder, (torch.randn(1, 64, 150),)


def mimi() -> Made:
    from transformers import MimiConfig, MimiModel

    config = MimiConfig(num_filters=16, hidden_size=128, codebook_dim=64, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=4, head_dim=32,
                        intermediate_size=256, vector_quantization_hidden_dimension=64,
                        upsample_groups=128, num_quantizers=4)  # fmt: skip
    return First(MimiModel(config), "audio_values"), (torch.randn(1, 1, 9600),)


def dac() -> Made:
    from transformers import DacConfig, DacModel

    config = DacConfig(encoder_hidden_size=16, decoder_hidden_size=256, hidden_size=256,
                       n_codebooks=3)  # fmt: skip
    return First(DacModel(config), "audio_values"), (torch.randn(1, 1, 5120),)


def unet2d() -> Made:
    from diffusers import UNet2DModel

    model = UNet2DModel(sample_size=32, layers_per_block=1,
                        block_out_channels=(64, 128, 128),
                        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
                        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    return First(model, "sample"), (torch.randn(2, 3, 32, 32), torch.tensor(10))


def unet2d_condition() -> Made:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(sample_size=32, layers_per_block=1,
                                 block_out_channels=(64, 128),
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                                 up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                                 cross_attention_dim=128, attention_head_dim=4)  # fmt: skip
    args = torch.randn(2, 4, 32, 32), torch.tensor(10), torch.randn(2, 77, 128)
    return First(model, "sample"), args


def vae_image() -> Made:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(32, 64, 64), norm_num_groups=16,
                          down_block_types=("DownEncoderBlock2D",) * 3,
                          up_block_types=("UpDecoderBlock2D",) * 3)  # fmt: skip
    return First(model, "sample"), (torch.randn(1, 3, 128, 128),)


def vae_wan() -> Made:
    from diffusers import AutoencoderKLWan

    model = AutoencoderKLWan(base_dim=16, z_dim=8, dim_mult=[1, 2, 2], num_res_blocks=1,
                             temperal_downsample=[False, True], latents_mean=[0.0] * 8,
                             latents_std=[1.0] * 8)  # fmt: skip
    return First(model, "sample"), (torch.randn(1, 3, 5, 48, 48),)


def vae_cogvideo() -> Made:
    from diffusers import AutoencoderKLCogVideoX

    model = AutoencoderKLCogVideoX(block_out_channels=(16, 16, 32, 32), norm_num_groups=8,
                                   layers_per_block=1, sample_height=48,
                                   sample_width=48)  # fmt: skip
    return First(model, "sample"), (torch.randn(1, 3, 5, 48, 48),)


def vae_ltx() -> Made:
    from diffusers import AutoencoderKLLTXVideo

    model = AutoencoderKLLTXVideo(block_out_channels=(32, 64, 64, 64),
                                  decoder_block_out_channels=(32, 64, 64, 64),
                                  latent_channels=32)  # fmt: skip
    return First(model, "sample"), (torch.randn(1, 3, 9, 64, 64),)


def vit() -> Made:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
                               intermediate_size=1536))  # fmt: skip
    return First(model), (torch.randn(2, 3, 224, 224),)


def sam() -> Made:
    from transformers import SamVisionConfig, SamVisionModel

    config = SamVisionConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=4,
                             image_size=256, global_attn_indexes=[1, 3], output_channels=128,
                             mlp_dim=768)  # fmt: skip
    return First(SamVisionModel(config)), (torch.randn(1, 3, 256, 256),)


def whisper() -> Made:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(d_model=256, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=1024,
                           decoder_ffn_dim=1024, encoder_attention_heads=4,
                           decoder_attention_heads=4, max_source_positions=400)  # fmt: skip
    features, tokens = torch.randn(1, 80, 800), torch.randint(0, 50000, (1, 32))
    model = First(WhisperModel(config), use_cache=False)
    return Named(model, "input_features", "decoder_input_ids"), (features, tokens)


class Named(nn.Module):
    """A model whose arguments go by names."""

    def __init__(self, inner: First, *names: str) -> None:
        super().__init__()
        self.inner, self.keys = inner, names

    def forward(self, *args: Any) -> Any:
        return self.inner.inner(**dict(zip(self.keys, args, strict=True)), **self.inner.fixed)[0]


def bert() -> Made:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=3, hidden_size=512, num_attention_heads=8,
                                 intermediate_size=2048))  # fmt: skip
    return First(model), (torch.randint(0, 30000, (2, 128)),)


class Int8Linear(nn.Module):
    """A layer whose weight is int8 with one scale for each row."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-127, 128, (outer, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(outer) / 1000)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w.to(x.dtype)) * self.scale.to(x.dtype)


class Token(nn.Module):
    """One token of a decoder with grouped queries: 4 layers of the sizes of Llama with 1B."""

    def __init__(self, linear: type[nn.Module], width: int = 2048, inner: int = 8192) -> None:
        super().__init__()
        make: Any = (lambda a, b: nn.Linear(a, b, bias=False)) if linear is nn.Linear else linear
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "q": make(width, width), "k": make(width, 512), "v": make(width, 512),
                "o": make(width, width), "gate": make(width, inner), "up": make(width, inner),
                "down": make(inner, width), "norm1": nn.RMSNorm(width), "norm2": nn.RMSNorm(width),
            })
            for _ in range(4)
        )  # fmt: skip
        self.head = make(width, 32000)
        self.register_buffer("keys", torch.randn(4, 1, 8, 256, 64))
        self.register_buffer("values", torch.randn(4, 1, 8, 256, 64))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            h = layer["norm1"](x)
            q = rotate(layer["q"](h).view(1, 1, -1, 64).transpose(1, 2), cos, sin)
            k = rotate(layer["k"](h).view(1, 1, -1, 64).transpose(1, 2), cos, sin)
            v = layer["v"](h).view(1, 1, -1, 64).transpose(1, 2)
            self.keys[i].index_copy_(2, at, k)
            self.values[i].index_copy_(2, at, v)
            mask = torch.arange(256)[None] <= at
            heads = F.scaled_dot_product_attention(q, self.keys[i], self.values[i], attn_mask=mask,
                                                   enable_gqa=True)  # fmt: skip
            x = x + layer["o"](heads.transpose(1, 2).reshape(1, 1, -1))
            h = layer["norm2"](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.head(x)  # type: ignore[no-any-return]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def token(linear: type[nn.Module] = nn.Linear) -> Made:
    angle = torch.rand(1, 64)
    x = torch.randn(1, 1, 2048)
    return Token(linear), (x, torch.tensor([100]), angle.cos(), angle.sin())


def token_int8() -> Made:
    return token(Int8Linear)


class Experts(nn.Module):
    """A mixture of eight experts of which each row takes two, expert by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 8)
        self.up = nn.Parameter(torch.randn(8, 256, 512) / 16)
        self.down = nn.Parameter(torch.randn(8, 512, 256) / 16)

    def forward(self, x: Tensor) -> Tensor:
        weight, which = torch.topk(torch.softmax(self.gate(x), -1), 2)
        weight = weight / weight.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for expert in range(8):
            row, slot = torch.where(which == expert)
            h = F.silu(x[row] @ self.up[expert]) @ self.down[expert]
            result.index_add_(0, row, h * weight[row, slot, None])
        return result


def moe() -> Made:
    return Experts(), (torch.randn(512, 256),)


class DenseExperts(Experts):
    """The same with every expert for every row, as stacks of GEMMs."""

    def forward(self, x: Tensor) -> Tensor:
        weight, which = torch.topk(torch.softmax(self.gate(x), -1), 2)
        mask = torch.zeros(x.shape[0], 8, dtype=x.dtype).scatter(1, which, weight)
        h = F.silu(torch.bmm(x.expand(8, *x.shape), self.up))
        return (torch.bmm(h, self.down) * mask.t().unsqueeze(-1)).sum(0)


def moe_dense() -> Made:
    return DenseExperts(), (torch.randn(256, 256),)


def mixtral() -> Made:
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                           num_attention_heads=4, num_key_value_heads=2, vocab_size=1000,
                           num_local_experts=4)  # fmt: skip
    return First(MixtralModel(config), use_cache=False), (torch.randint(0, 1000, (2, 128)),)


class Rotary(nn.Module):
    """Norm, projections, rotary positions and attention of a decoder, with its gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(512), nn.RMSNorm(512)
        self.qkv, self.out = nn.Linear(512, 1536, bias=False), nn.Linear(512, 512, bias=False)
        self.gate, self.down = nn.Linear(512, 2816, bias=False), nn.Linear(1408, 512, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                               is_causal=True)  # fmt: skip
        x = x + self.out(heads.transpose(1, 2).reshape(b, n, 512))
        gate, up = self.gate(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotary() -> Made:
    angle = torch.rand(256, 64)
    return Rotary(), (torch.randn(2, 256, 512), angle.cos(), angle.sin())


def group_norm() -> Made:
    blocks = [nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1))
              for _ in range(4)]  # fmt: skip
    return nn.Sequential(*blocks), (torch.randn(2, 64, 48, 48),)


def conv1d() -> Made:
    layers: list[nn.Module] = [nn.Conv1d(1, 32, 7, padding=3), nn.ELU()]
    for i, dilation in enumerate((1, 3, 9)):
        a = 32 << i
        layers += [nn.Conv1d(a, a, 3, padding=dilation, dilation=dilation), nn.ELU()]
        layers += [nn.Conv1d(a, 2 * a, 4, stride=2, padding=1), nn.ELU()]
    return nn.Sequential(*layers), (torch.randn(2, 1, 8000),)


def conv_transpose1d() -> Made:
    layers: list[nn.Module] = []
    for i in range(3):
        a = 256 >> i
        layers += [nn.ConvTranspose1d(a, a // 2, 8, stride=4, padding=2), nn.LeakyReLU(0.1)]
        layers += [nn.Conv1d(a // 2, a // 2, 3, padding=1), nn.LeakyReLU(0.1)]
    layers += [nn.Conv1d(32, 1, 7, padding=3), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(2, 256, 64),)


def conv2d_transposed() -> Made:
    layers: list[nn.Module] = []
    for a, b in ((128, 64), (64, 32), (32, 16)):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1)), (torch.randn(4, 128, 16, 16),)


def conv3d() -> Made:
    layers: list[nn.Module] = []
    for a, b in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU()]
    return nn.Sequential(*layers), (torch.randn(1, 3, 8, 40, 40),)


def lstm() -> Made:
    return First(nn.LSTM(128, 256, 2, batch_first=True)), (torch.randn(8, 32, 128),)


def gru() -> Made:
    return First(nn.GRU(128, 256, 2, batch_first=True)), (torch.randn(8, 32, 128),)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(256, 32000, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).float(), y)


def cross_entropy() -> Made:
    return Loss(), (torch.randn(256, 256), torch.randint(0, 32000, (256,)))


def step(kind: str) -> Made:
    shapes: list[tuple[int, ...]] = [(256, 256), (256,), (1024, 64), (64,), (32, 16, 3, 3)]
    leaves = [torch.randn(shape) / 8 for shape in shapes * 30]
    for leaf in leaves:
        leaf.requires_grad_()
        leaf.grad = torch.randn_like(leaf)
    make: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(leaves, foreach=True),
        "adamw_loop": lambda: torch.optim.AdamW(leaves, foreach=False),
        "sgd": lambda: torch.optim.SGD(leaves, lr=1e-3, momentum=0.9),
    }
    optimizer = make[kind]()

    def run() -> list[Tensor]:
        optimizer.step()
        return leaves

    run.leaves = leaves  # type: ignore[attr-defined]
    return run, ()


def adamw() -> Made:
    return step("adamw")


def adamw_loop() -> Made:
    return step("adamw_loop")


def sgd() -> Made:
    return step("sgd")


PROGRAMS: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        encodec, encodec_decoder, mimi, dac, unet2d, unet2d_condition, vae_image, vae_wan,
        vae_cogvideo, vae_ltx, vit, sam, whisper, bert, token, token_int8, moe, moe_dense, mixtral,
        rotary, group_norm, conv1d, conv_transpose1d, conv2d_transposed, conv3d, lstm, gru,
        cross_entropy, adamw, adamw_loop, sgd,
    )
} | MORE  # fmt: skip


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for part in value for each in tensors(part)]


def build(name: str) -> tuple[Any, tuple[Any, ...], bool]:
    """A program, its arguments, and whether it is trained, from one seed."""
    base, *how = name.split(":")
    torch.manual_seed(0)
    program, args = PROGRAMS[base]()
    if isinstance(program, nn.Module):
        program = program.train("train" in how)
        for module in program.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return cast((program, args), torch.bfloat16) + ("train" in how,) if "bf16" in how else (
        program, args, "train" in how)  # fmt: skip


def cast(made: Made, dtype: torch.dtype) -> Made:
    program, args = made
    if isinstance(program, nn.Module):
        program = program.to(dtype)
    moved = [each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
             for each in args]  # fmt: skip
    return program, tuple(moved)


def caller(
    form: Any, program: Any, args: tuple[Any, ...], train: bool
) -> Callable[[], list[Tensor]]:
    """One step: results, and in training the gradients of all parameters."""
    if not train:

        def infer() -> list[Tensor]:
            with torch.no_grad():
                return tensors(form(*args))

        return infer
    parameters = [each for each in program.parameters() if each.requires_grad]
    probes: list[Tensor] = []

    def trained() -> list[Tensor]:
        for each in parameters:
            each.grad = None
        results = [each for each in tensors(form(*args)) if each.requires_grad]
        if not probes:
            generator = torch.Generator().manual_seed(1)
            probes.extend(torch.randn(each.shape, generator=generator).to(each.dtype)
                          for each in results)  # fmt: skip
        torch.autograd.backward(results, probes)
        return results + [each.grad for each in parameters if each.grad is not None]

    return trained


def error(got: list[Tensor], want: list[Tensor]) -> float:
    assert len(got) == len(want), (len(got), len(want))
    worst, top = 0.0, max(each.abs().max().item() for each in want)
    for a, b in zip(got, want, strict=True):
        scale = max(b.abs().max().item(), 1e-4 * top, 1e-12)
        worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


def copies(values: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in values]


def measure(name: str, threads: int, budget: float, with_torch: bool) -> dict[str, Any]:
    import dynamo
    from dynamo.testing import assert_compiled

    torch.set_num_threads(threads)
    compilers: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "ours": dynamo.compile}
    if with_torch:
        compilers["torch"] = torch.compile
    calls: dict[str, Callable[[], list[Tensor]]] = {}
    first: dict[str, list[Tensor]] = {}
    cold: dict[str, float] = {}
    strides: dict[str, list[Any]] = {}
    for which, compile in compilers.items():
        program, args, train = build(name)
        calls[which] = caller(compile(program), program, args, train)
        torch.manual_seed(1)
        start = time.perf_counter()
        try:
            result = calls[which]()
        except Exception as problem:
            if which != "torch":
                raise
            print(f"torch.compile: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
            del calls[which]
            continue
        cold[which] = time.perf_counter() - start
        first[which], strides[which] = copies(result), [each.stride() for each in result]
    errors: dict[str, float] = {}
    try:
        program, args, train = build(name)
        if not isinstance(program, nn.Module):
            want = first["eager"]
        else:
            program, args = cast((copy.deepcopy(program), args), torch.float64)
            torch.manual_seed(1)
            want = copies(caller(program, program, args, train)())
        errors = {which: error(got, want) for which, got in first.items()}
    except (RuntimeError, TypeError) as problem:
        print("float64:", str(problem)[:100])
        errors = {which: error(got, first["eager"]) for which, got in first.items()}
    assert_compiled()
    for call in calls.values():
        call(), call()
    once = {which: min(elapsed(call) for _ in range(3)) for which, call in calls.items()}
    block = max(1, min(50, int(0.03 / min(once.values()))))
    rows: dict[str, list[float]] = {which: [] for which in calls}
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(rows["ours"]) < 7:
        for which, call in calls.items():
            call()  # threads of the form before may still spin
            rows[which].append(statistics.median(elapsed(call) for _ in range(block)))
    result_: dict[str, Any] = {which: 1e3 * statistics.median(row) for which, row in rows.items()}
    result_ |= {"cold": cold, "errors": errors, "strides": strides["ours"] == strides["eager"]}
    for other in ("torch", "eager"):
        if other in rows:
            pairs = [a / b for a, b in zip(rows["ours"], rows[other], strict=True)]
            result_["of_" + other] = statistics.quantiles(pairs, n=4)
            result_["best_of_" + other] = min(rows["ours"]) / min(rows[other])
    return result_


clock = time.perf_counter


def elapsed(call: Callable[[], Any]) -> float:
    start = clock()
    call()
    return clock() - start


def row(name: str, found: dict[str, Any]) -> str:
    theirs = found.get("torch", float("nan"))
    low, middle, high = found.get("of_torch", [float("nan")] * 3)
    errors, cold = found["errors"], found["cold"]
    return (f"{name:24}{found['eager']:9.2f}{found['ours']:9.2f}{theirs:9.2f}"
            f"{found['of_eager'][1]:7.2f}{middle:7.2f} ({low:.2f}-{high:.2f}) "
            f"best {found.get('best_of_torch', float('nan')):5.2f}"
            f"  error {errors['ours']:.0e} {errors['eager']:.0e} {errors.get('torch', -1):.0e}"
            f"  cold {cold['ours']:.0f} {cold.get('torch', 0):.0f} s"
            f"{'' if found['strides'] else '  STRIDES DIFFER'}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="time of the processor: 1 thread")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        global clock
        clock = time.process_time if options.cpu_time else time.perf_counter
        found = measure(options.one, options.threads, options.seconds, not options.no_torch)
        print(json.dumps(found), flush=True)
        return 0
    print(f"{'program':24}{'eager ms':>9}{'ours':>9}{'torch':>9}{'/eager':>7}{'/torch':>7}")
    failed = 0
    for name in options.names or PROGRAMS:
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, DYNAMO_CACHE_DIR=cache, HF_HUB_OFFLINE="1",
                               TORCHINDUCTOR_CACHE_DIR=f"{cache}/torch")  # fmt: skip
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.programs_cpu"]
            command += ["--one", name, "--threads", str(options.threads)]
            command += ["--seconds", str(options.seconds)] + ["--no-torch"] * options.no_torch
            command += ["--cpu-time"] * options.cpu_time
            done = subprocess.run(command, env=environment, capture_output=True, text=True,
                                  check=False, cwd=Path(__file__).parents[1])  # fmt: skip
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            failed += 1
            print(f"{name}: failed\n{done.stdout[-500:]}{done.stderr[-1500:]}", flush=True)
            continue
        print(*lines[:-1], row(name, json.loads(lines[-1])), sep="\n", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
