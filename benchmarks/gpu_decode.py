"""Decoding with a language model on a GPU, a token at a time: ours beside torch.compile and eager.

    python benchmarks/gpu_decode.py [--layers 8] [--batches 1 8] [--modes reduce-overhead]
        [--dynamic] [--no-peer] [--profile] [--write FILE]

The model is written here as users write it: RMS norms in float32, rotary embeddings, grouped heads,
a cache in buffers that is written at the token's position, a mask read at it, gated MLP, all in
bfloat16; its sizes are those of an 8-billion-parameter Llama (hidden 4096, 32 heads, 8 of keys,
14336, vocabulary 128256), with `--layers` of its 32 layers. A step is one token for each sequence,
its position a tensor on the device, as in a generation loop. A way is right where its logits are
within 2e-2 of eager's and the next tokens of a few steps are the same, or no further from float32
than eager. "bound" is the time in which the device reads the weights and the cache once, at its
measured copy speed. Times are medians of turns, each way in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402

HIDDEN, HEADS, KEY_HEADS, INNER, VOCABULARY = 4096, 32, 8, 14336, 128256
HEAD = HIDDEN // HEADS
LENGTH = 1024  # of the cache
ROUNDS = 9
TOLERANCE = 2e-2


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return wide.type_as(x) * self.weight


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x: (batch, length, heads, head); angles: (length, head / 2, 2), cosines and sines."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    table = angles.view(1, pairs.size(1), 1, pairs.size(3), 2)
    turned = torch.stack([
        pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1],
        pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1],
    ], -1)  # fmt: skip
    return turned.flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, batch: int) -> None:
        super().__init__()
        self.before, self.between = Norm(HIDDEN), Norm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key, self.value = (nn.Linear(HIDDEN, KEY_HEADS * HEAD, bias=False) for _ in range(2))
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, KEY_HEADS, LENGTH, HEAD))

    def forward(
        self, x: torch.Tensor, at: torch.Tensor, angles: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.attention(self.before(x), at, angles, mask)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(
        self, x: torch.Tensor, at: torch.Tensor, angles: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        batch, length, _ = x.shape
        q = rotate(self.query(x).view(batch, length, HEADS, HEAD), angles).transpose(1, 2)
        k = rotate(self.key(x).view(batch, length, KEY_HEADS, HEAD), angles).transpose(1, 2)
        v = self.value(x).view(batch, length, KEY_HEADS, HEAD).transpose(1, 2)
        self.keys[:, :, at] = k
        self.values[:, :, at] = v
        keys = self.keys.repeat_interleave(HEADS // KEY_HEADS, 1)
        values = self.values.repeat_interleave(HEADS // KEY_HEADS, 1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, length, HIDDEN))


class Model(nn.Module):
    def __init__(self, layers: int, batch: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(batch) for _ in range(layers))
        self.norm = Norm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        turns = 500000.0 ** -(torch.arange(0, HEAD, 2).float() / HEAD)
        angles = torch.outer(torch.arange(LENGTH).float(), turns)
        self.register_buffer("angles", torch.stack([angles.cos(), angles.sin()], -1))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        mask, angles = self.mask[None, None, at], self.angles[at]
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x, at, angles, mask)
        return self.head(self.norm(x))


def make(layers: int, batch: int) -> Model:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(layers, batch)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0, 0.02)
    return model.bfloat16().eval().requires_grad_(False)


def generate(
    model: Model, call: Callable[..., torch.Tensor], prompt: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of so many steps behind a prompt, and the logits of the last one."""
    for layer in model.layers:
        layer.keys.zero_()
        layer.values.zero_()
    found = []
    with torch.no_grad():
        logits = model(prompt, torch.arange(prompt.shape[1], device="cuda"))
        tokens = logits[:, -1:].argmax(-1)
        for step in range(steps):
            at = torch.tensor([prompt.shape[1] + step], device="cuda")
            logits = call(tokens, at).clone()
            tokens = logits[:, -1:].argmax(-1)
            found.append(tokens)
    return torch.cat(found, 1), logits


def copy_speed() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    took = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return 2 * source.numel() / min(took)


def milliseconds(steps: dict[str, Callable[[], Any]], calls: int = 20) -> dict[str, float]:
    """Of a call of each; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / calls * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(options: argparse.Namespace, batch: int, mode: str, speed: float) -> dict[str, Any]:
    """One row: the ways of one mode."""
    dynamo.reset()
    torch._dynamo.reset()
    model = make(options.layers, batch)
    prompt = torch.randint(VOCABULARY, (batch, 40), device="cuda")
    want, logits = generate(model, model, prompt, 6)
    chosen = None if mode == "default" else mode
    ways: dict[str, Callable[..., torch.Tensor]] = {"eager": model}
    ways["ours"] = dynamo.compile(model, mode=chosen)
    if not options.no_peer:
        ways["torch.compile"] = torch.compile(model, mode=chosen)
    row: dict[str, Any] = {"batch": batch, "mode": mode, "layers": options.layers}
    steps = {}
    tokens, at = want[:, :1], torch.tensor([100], device="cuda")
    for name, way in ways.items():
        start = time.perf_counter()
        found, last = generate(model, way, prompt, 6)
        row[name] = {"s": time.perf_counter() - start}
        row[name]["error"] = ((last - logits).abs().max() / logits.abs().max()).item()
        row[name]["same tokens"] = torch.equal(found, want)

        def step(way: Callable[..., torch.Tensor] = way) -> None:
            with torch.no_grad():
                torch.compiler.cudagraph_mark_step_begin()
                way(tokens, at)

        steps[name] = step
    for name, took in milliseconds(steps).items():
        row[name]["ms"] = took
    row["left"] = dict(dynamo.counters["not_compiled"])
    read = [p for name, p in model.named_parameters() if "table" not in name]
    read += [b for name, b in model.named_buffers() if "layers" in name]
    row["bound"] = sum(x.numel() * x.element_size() for x in read) / speed * 1e3
    if options.profile:
        show_kernels(steps["ours"])
    return row


def show_kernels(step: Callable[[], Any], calls: int = 10) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    rows: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            rows.setdefault(event.name[:100], []).append(event.device_time)
    for name, took in sorted(rows.items(), key=lambda pair: -sum(pair[1]))[:24]:
        count, total = len(took) / calls, sum(took) / calls
        print(f"  {total:8.1f} us {count:6.1f} x {total / count:7.2f}  {name}")


def shown(row: dict[str, Any]) -> str:
    parts = [f"batch {row['batch']} {row['mode']:16} bound {row['bound']:.3f} ms"]
    for name in ("eager", "ours", "torch.compile"):
        if name in row:
            one = row[name]
            same = "" if one["same tokens"] else " other tokens"
            parts.append(f"{name} {one['ms']:.3f} ms ({one['s']:.1f} s, {one['error']:.1e}{same})")
    return "; ".join([*parts, f"left {row['left']}" if row["left"] else "all compiled"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--modes", nargs="+", default=["default", "reduce-overhead"])
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--write", default="", help="a file for the rows as JSON, one a line")
    options = parser.parse_args()
    speed = copy_speed()
    name = torch.cuda.get_device_name()
    print(f"{name}, copy {speed / 1e12:.2f} TB/s, torch {torch.__version__}")
    wrong = 0
    for batch in options.batches:
        for mode in options.modes:
            row = measure(options, batch, mode, speed)
            print(shown(row), flush=True)
            wrong += bool(row["left"]) or row["ours"]["error"] > TOLERANCE
            if options.write:
                with open(options.write, "a") as file:
                    print(json.dumps(row), file=file)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
