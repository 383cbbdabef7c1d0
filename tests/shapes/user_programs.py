"""Programs over changing sizes as users write them: name -> (program, inputs for a size).

`python -m tests.shapes.user_programs` runs each on 20 sizes on the default backend, against eager, and
prints how many graphs were compiled.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dynamo
from inductor import metrics
from tests.shapes.on_default_backend import difference

SIZES = (7, 12, 9, 4, 30, 21, 8, 16, 5, 11, 2, 3, 18, 25, 6, 13, 40, 33, 10, 64)


@dataclass(frozen=True)
class Case:
    """graphs: at most how many may be compiled for all sizes."""

    program: Callable[..., Any]
    inputs: Callable[[int], Sequence[Any]]
    graphs: int = 2
    settings: tuple[str, ...] = ()


class Encoder(nn.Module):
    """A layer of a transformer over (batch, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(80, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        x = self.layer(x, src_key_padding_mask=padding)
        kept = (~padding)[..., None].to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1))


def attention(x: Tensor) -> Tensor:
    rows, columns = x.shape[0], x.shape[1]
    mask = torch.triu(torch.full((rows, rows), float("-inf")), 1)
    return F.softmax(x @ x.t() / columns**0.5 + mask, -1) @ x


def padded(x: Tensor) -> Tensor:
    missing = (-x.shape[0]) % 8
    return F.pad(x, (0, 0, 0, missing)).view(-1, 8, x.shape[1]).sum(1)


def ragged(parts: list[Tensor]) -> Any:
    longest = max(part.shape[0] for part in parts)
    rows = [F.pad(part, (0, longest - part.shape[0])) for part in parts]
    return torch.stack(rows), torch.tensor([part.shape[0] for part in parts])


def windows(x: Tensor) -> Tensor:
    return x.unfold(0, 2, 1).mean(-1) * torch.linspace(0, 1, x.shape[0] - 1)[:, None]


def rotary(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[0])[:, None] / 10 ** (torch.arange(0, x.shape[1], 2) / x.shape[1])
    even, odd = x[:, ::2], x[:, 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def sliced(x: Tensor, count: Tensor) -> Any:
    n = count.item()
    return x[:n].sum(0), x[n:] * 2


def boxes(scores: Tensor) -> Any:
    order = scores.argsort(descending=True, stable=True)
    best = order[: scores.shape[0] // 2]
    return scores[best], best, (scores[best] > 0).sum()


def pairs(x: Tensor) -> Tensor:
    n = x.shape[0]
    first, second = torch.triu_indices(n, n, 1)
    return (x[first] - x[second]).square().sum(-1)


def positions(mask: Tensor, x: Tensor) -> Any:
    at = mask.nonzero().squeeze(1)
    return x[at] * 2, at.shape[0]


def blocks(x: Tensor) -> Tensor:
    """Attention inside of 4 x 4 blocks."""
    n, height, width, channels = x.shape
    below, beside = -height % 4, -width % 4
    wide = F.pad(x, (0, 0, 0, beside, 0, below))
    rows, columns = (height + below) // 4, (width + beside) // 4
    parts = wide.view(n, rows, 4, columns, 4, channels).transpose(2, 3).reshape(-1, 16, channels)
    found = F.scaled_dot_product_attention(parts, parts, parts)
    found = found.view(n, rows, columns, 4, 4, channels).transpose(2, 3)
    return found.reshape(wide.shape)[:, :height, :width]


MOST = 8  # what fixes a size is compiled for each, up to the limit: linspace, triu_indices
NUMBERS = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
CONVOLUTION = nn.Sequential(nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 3))
PYRAMID = nn.Sequential(
    nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True),
    nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
).eval()  # fmt: skip
STRIDES = nn.Sequential(
    nn.Conv2d(1, 3, 7, 2, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    nn.Conv2d(3, 4, 3, 2, 1), nn.AvgPool2d(2, 2, 1), nn.Flatten(2),
).eval()  # fmt: skip
RECURRENT = nn.GRU(4, 5, batch_first=True)


def rows(n: int) -> list[Tensor]:
    return [torch.randn(n, 6)]


CASES: dict[str, Case] = {
    "encoder, batch": Case(Encoder().eval(), lambda n: [
        torch.randint(50, (n, 9)), torch.arange(9) >= torch.randint(1, 9, (n, 1))]),
    "encoder, length": Case(Encoder().eval(), lambda n: [
        torch.randint(50, (3, n)), torch.arange(n) >= torch.randint(1, n + 1, (3, 1))]),
    "encoder, both": Case(Encoder().eval(), lambda n: [
        torch.randint(50, (n, n + 3)), torch.arange(n + 3) >= torch.randint(1, n, (n, 1))]),
    "training": Case(lambda x, w: F.layer_norm(F.gelu(x @ w), (4,)), lambda n: [
        torch.randn(n, 6, dtype=torch.float64, requires_grad=True),
        torch.randn(6, 4, dtype=torch.float64)], 4),
    "attention": Case(attention, rows),
    "rotary": Case(rotary, rows),
    "padded": Case(padded, rows),
    "ragged": Case(ragged, lambda n: [[torch.randn(n), torch.randn(n + 2), torch.randn(5)]], 4),
    "cat of two": Case(lambda x, y: torch.cat([x, y, x[:1]]).cumsum(0), lambda n: [
        torch.randn(n, 3), torch.randn(2 * n + 1, 3)]),
    "mask": Case(lambda x, lengths: x.masked_fill(
        torch.arange(x.shape[1]) >= lengths[:, None], 0).sum(1) / lengths, lambda n: [
            torch.randn(4, n), torch.randint(1, n + 1, (4,))]),
    "arange": Case(lambda n: (torch.arange(n) * 2).float().softmax(0), lambda n: [n]),
    "view by two": Case(lambda x: x.view(-1, x.shape[1] * 2).sum(1), lambda n: [torch.randn(2 * n, n)]),
    "chunks": Case(lambda x: torch.cat([part * at for at, part in enumerate(x.chunk(2, 1))]), rows),
    "windows": Case(windows, rows, MOST),
    "interleave": Case(lambda x: x.repeat_interleave(3, 0) + torch.arange(3 * len(x))[:, None], rows),
    "interleave by counts": Case(lambda x, counts: x.repeat_interleave(counts, 0) * 2, lambda n: [
        torch.randn(n, 3), torch.randint(0, 4, (n,))], 3, NUMBERS),
    "topk": Case(lambda x: x.topk(x.shape[0] // 2, 0), rows),
    "boxes": Case(boxes, lambda n: [torch.randn(n)], 3),  # the half of two is one
    "convolution": Case(CONVOLUTION, lambda n: [torch.randn(2, 3, 2 * n + 4)]),
    "pyramid": Case(PYRAMID, lambda n: [torch.randn(2, 1, n + 2, 2 * n + 3)]),
    "strides": Case(STRIDES, lambda n: [torch.randn(2, 1, n + 8, 2 * n + 7)]),
    "blocks of an image": Case(blocks, lambda n: [torch.randn(2, n + 4, 2 * n + 3, 8)]),
    "recurrent": Case(lambda x: RECURRENT(x)[0][:, -1], lambda n: [torch.randn(n, 3, 4)]),
    "bags": Case(lambda at, table, offsets: F.embedding_bag(at, table, offsets), lambda n: [
        torch.randint(5, (3 * n,)), torch.randn(5, 4), torch.arange(n) * 2]),
    "pairs": Case(pairs, rows, MOST),
    "nonzero": Case(positions, lambda n: [
        torch.rand(n) > 0.5, torch.randn(n, 2)], 4, NUMBERS),  # of the first size; then none, one, more
    "item": Case(sliced, lambda n: [torch.randn(70, 2), torch.tensor(n)], 3, NUMBERS),
    "batch of images": Case(lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:], mode="bilinear"),
                            lambda n: [torch.randn(2, 1, n, n + 1)], 4),  # (1, 1), (1, 2), more
    "loss": Case(lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=0), lambda n: [
        torch.randn(3, n, 5), torch.randint(5, (3, n))]),
    "heads": Case(lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2).reshape(
        -1, x.shape[1], x.shape[2] // 2), lambda n: [torch.randn(3, n, 4)]),
}  # fmt: skip


def results(program: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """What it returns; the gradient of the first input too where it has one."""
    found = program(*inputs)
    first = inputs[0]
    if isinstance(first, Tensor) and first.requires_grad:
        return found, torch.autograd.grad(found.sin().sum(), first)[0]
    return found


def check(name: str, dynamic: Any = None, sizes: Sequence[int] = SIZES) -> tuple[list[str], int]:
    """What differs from eager, and how many graphs were compiled."""
    case = CASES[name]
    told = []
    before = metrics.snapshot()["graphs"]
    with (
        dynamo.config.patch(suppress_errors=False, **dict.fromkeys(case.settings, True)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        compiled = dynamo.compile(case.program, dynamic=dynamic)
        for size in sizes:
            inputs = case.inputs(size)
            text = difference(results(compiled, inputs), results(case.program, inputs))
            if text:
                told.append(f"{name} at {size}: {text}")
    return told, metrics.snapshot()["graphs"] - before


def main() -> int:
    failed = 0
    for name in sys.argv[1:] or CASES:
        for dynamic in (None, True):
            try:
                told, graphs = check(name, dynamic)
            except Exception as error:
                told, graphs = [f"{error!r:.600}"], -1
            frames = dict(dynamo.counters["stats"])
            print(f"{name} ({dynamic=}): {graphs} graphs, {frames}", *told[:2], sep="\n    ", flush=True)
            failed += len(told) > 0
            dynamo.reset()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
