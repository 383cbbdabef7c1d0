"""Programs that a compiler can easily make slower than eager: eager, ours and torch.compile.

    python benchmarks/slow_cases.py [--cases cache_slice adamw_100 ..] [--budget 2] [--no-torch]

Each case makes its state anew for each of the three, which then run in turn in one process. The
table gives median milliseconds, and by how much ours is faster than eager and torch.compile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import dynamo  # noqa: E402

Call = Callable[[], Any]
Compiler = Callable[[Any], Any]
Case = Callable[[Compiler], Call]

HEADS, LONGEST, WIDTH = 8, 2048, 64
MIXED = ((256, 256), (256,), (64, 128), (1000,), (16, 3, 3, 3))


class Decoder(nn.Module):
    """One attention layer that keeps its keys and values; `how` it writes them."""

    cache_k: Tensor
    cache_v: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.register_buffer("cache_k", torch.zeros(1, HEADS, LONGEST, WIDTH))
        self.register_buffer("cache_v", torch.zeros(1, HEADS, LONGEST, WIDTH))

    def forward(self, x: Tensor, pos: Any) -> Tensor:
        q, k, v = self.qkv(x).view(1, 1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        if self.how == "slice":
            self.cache_k[:, :, pos : pos + 1] = k
            self.cache_v[:, :, pos : pos + 1] = v
        elif self.how == "index":
            self.cache_k[:, :, pos] = k
            self.cache_v[:, :, pos] = v
        elif self.how == "rebind":
            self.cache_k = self.cache_k.index_copy(2, pos, k)
            self.cache_v = self.cache_v.index_copy(2, pos, v)
        else:
            self.cache_k.index_copy_(2, pos, k)
            self.cache_v.index_copy_(2, pos, v)
        keys, values = self.cache_k[:, :, :64], self.cache_v[:, :, :64]
        weights = torch.softmax((q * keys).sum(-1), -1)
        return (weights.unsqueeze(-1) * values).sum(2)


def cache(how: str, position: str) -> Case:
    def make(compile: Compiler) -> Call:
        model = compile(Decoder(how).eval())
        x = torch.randn(1, 1, HEADS * WIDTH)
        count = [0]

        def call() -> Tensor:
            count[0] = (count[0] + 1) % LONGEST
            at: Any = 7 if position == "constant" else count[0]
            at = torch.tensor([at]) if position == "tensor" else at
            with torch.no_grad():
                return model(x, at)  # type: ignore[no-any-return]

        return call

    return make


def rotary(q: Tensor, k: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    b = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    freqs = freqs.view(1, freqs.shape[0], 1, freqs.shape[1])
    return (
        torch.view_as_real(a * freqs).flatten(3).type_as(q),
        torch.view_as_real(b * freqs).flatten(3).type_as(k),
    )


def frequencies() -> Tensor:
    steps = torch.outer(torch.arange(512.0), 1e4 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    return torch.polar(torch.ones_like(steps), steps)


def rotary_forward(compile: Compiler) -> Call:
    f, freqs = compile(rotary), frequencies()
    q, k = torch.randn(2, 512, HEADS, WIDTH), torch.randn(2, 512, HEADS, WIDTH)
    return lambda: f(q, k, freqs)


def rotary_training(compile: Compiler) -> Call:
    f, freqs = compile(rotary), frequencies()
    q, k = (torch.randn(2, 512, HEADS, WIDTH, requires_grad=True) for _ in range(2))

    def call() -> Any:
        a, b = f(q, k, freqs)
        return torch.autograd.grad((a * b).sum(), (q, k))

    return call


def detect(levels: list[Tensor], grids: list[Tensor], anchors: list[Tensor]) -> Tensor:
    out = []
    for level, (y, grid, anchor) in enumerate(zip(levels, grids, anchors, strict=True)):
        b, _, h, w = y.shape
        y = y.view(b, 3, 85, h, w).permute(0, 1, 3, 4, 2).contiguous()
        stride = 8.0 * 2**level
        y[..., 0:2] = (y[..., 0:2].sigmoid() * 2 - 0.5 + grid) * stride
        y[..., 2:4] = (y[..., 2:4].sigmoid() * 2) ** 2 * anchor
        y[..., 4:] = y[..., 4:].sigmoid()
        out.append(y.view(b, -1, 85))
    return torch.cat(out, 1)


def detector(compile: Compiler) -> Call:
    f = compile(detect)
    sizes = (40, 20, 10)
    levels = [torch.randn(2, 255, n, n) for n in sizes]
    grids = [torch.randn(1, 3, n, n, 2) for n in sizes]
    anchors = [torch.rand(1, 3, n, n, 2) for n in sizes]
    return lambda: f(levels, grids, anchors)


def per_sample(compile: Compiler) -> Call:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    params = {name: value.detach() for name, value in model.named_parameters()}
    x, y = torch.randn(64, 64), torch.randint(10, (64,))

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, params, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(out, y.unsqueeze(0))

    f = compile(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0)))
    return lambda: f(params, x, y)


def adam_step(
    params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor]
) -> None:
    for p, g, a, b in zip(params, grads, means, squares, strict=True):
        a.mul_(0.9).add_(g, alpha=0.1)
        b.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(a, b.sqrt().add_(1e-8), value=-1e-3)


def written_adam(count: int, size: int) -> Case:
    def make(compile: Compiler) -> Call:
        f = compile(adam_step)
        args = [[torch.randn(size, size) for _ in range(count)] for _ in range(3)]
        args.append([torch.rand(size, size) for _ in range(count)])

        def call() -> None:
            with torch.no_grad():
                f(*args)

        return call

    return make


def optimizer(kind: Callable[..., Any], count: int, **options: Any) -> Case:
    def make(compile: Compiler) -> Call:
        shapes = [MIXED[n % len(MIXED)] for n in range(count)]
        params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        made = kind(params, lr=1e-3, **options)

        def step() -> None:
            made.step()

        return compile(step)  # type: ignore[no-any-return]

    return make


ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD
CASES: dict[str, Case] = {
    "cache_slice_constant": cache("slice", "constant"),
    "cache_slice_int": cache("slice", "int"),
    "cache_index_tensor": cache("index", "tensor"),
    "cache_copy_tensor": cache("copy", "tensor"),
    "cache_rebind_tensor": cache("rebind", "tensor"),
    "written_adam_100": written_adam(100, 256),
    "written_adam_100_tiny": written_adam(100, 8),
    **{f"adamw_foreach_{n}": optimizer(ADAMW, n, foreach=True) for n in (10, 100, 400)},
    **{f"adamw_loop_{n}": optimizer(ADAMW, n, foreach=False) for n in (10, 100, 400)},
    **{f"sgd_foreach_{n}": optimizer(SGD, n, momentum=0.9, foreach=True) for n in (100, 400)},
    **{f"sgd_loop_{n}": optimizer(SGD, n, momentum=0.9, foreach=False) for n in (100, 400)},
    "rotary_forward": rotary_forward,
    "rotary_training": rotary_training,
    "detector": detector,
    "per_sample": per_sample,
}


def measure(case: Case, compilers: dict[str, Compiler], budget: float) -> dict[str, float]:
    """Median milliseconds of a call by each compiler."""
    calls = [case(compile) for compile in compilers.values()]
    for call in calls * 5:
        call()
    rows: list[list[float]] = []
    start = time.perf_counter()
    while len(rows) < 9 or time.perf_counter() - start < budget:
        row = []
        for call in calls:
            call()  # the caches hold what the others have used
            before = time.perf_counter()
            call()
            row.append(time.perf_counter() - before)
        rows.append(row)
    medians = [1e3 * statistics.median(column) for column in zip(*rows, strict=True)]
    return dict(zip(compilers, medians, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of timing per case")
    parser.add_argument("--no-torch", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    compilers: dict[str, Compiler] = {"eager": lambda f: f, "ours": dynamo.compile}
    if not options.no_torch:
        compilers["torch"] = torch.compile
    print(f"{'case':24}" + "".join(f"{name:>10}" for name in compilers) + "  vs eager  vs torch")
    for name in options.cases:
        torch.manual_seed(0)
        found = measure(CASES[name], compilers, options.budget)
        ratios = f"{found['eager'] / found['ours']:10.2f}"
        ratios += f"{found['torch'] / found['ours']:10.2f}" if "torch" in found else ""
        print(f"{name:24}" + "".join(f"{ms:10.3f}" for ms in found.values()) + ratios, flush=True)


if __name__ == "__main__":
    main()
