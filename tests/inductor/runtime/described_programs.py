"""Programs that test_processors.py runs on processors as they are described: each compares with eager.

`DYNAMO_PROCESSOR="x86-64-v3 mkl" python -m tests.inductor.runtime.described_programs packages` runs one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import dynamo


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.reshape(2, 40, 4, 16).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


class Net(nn.Module):
    """A GEMM with what follows it, one without a weight, and attention; of a dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(*sizes, dtype=dtype) for sizes in ((64, 192), (192, 64)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.down(F.relu(self.up(x)))
        return rows, torch.bmm(rows, rows.mT), attention(rows)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.window, self.one, self.own = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 24, 1), nn.Conv2d(24, 24, 3, groups=24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self.one(F.relu(self.window(x))))


def numbers(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randint(-4, 5, size).float() / 8).to(dtype)


def assert_near(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(found, wanted, **close)


def gemms_and_attention() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        net, x = Net(dtype).eval(), numbers(2, 40, 64, dtype=dtype)
        with torch.no_grad():
            assert_near(dynamo.compile(net)(x), net(x), dtype)


def gradients() -> None:
    net, x = Net(torch.float32), numbers(2, 40, 64)

    def step(model: Any) -> list[torch.Tensor | None]:
        net.zero_grad()
        sum(part.square().sum() for part in model(x)).backward()
        return [one.grad for one in net.parameters()]

    torch.testing.assert_close(step(dynamo.compile(net)), step(net), rtol=1e-3, atol=1e-3)


def convolutions() -> None:
    net, x = Convolutions().eval(), numbers(1, 8, 20, 20)
    with torch.no_grad():
        assert_near(dynamo.compile(net)(x), net(x), torch.float32)


def packages() -> None:
    nets = {dtype: Net(dtype).eval() for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    windows = [nn.Conv2d(4, 8, 3, dtype=dtype).eval() for dtype in nets]

    def program(x: torch.Tensor, image: torch.Tensor) -> list[Any]:
        made = [window(image.to(dtype)) for dtype, window in zip(nets, windows)]
        return [net(x.to(dtype)) for dtype, net in nets.items()] + made

    x, image = numbers(2, 40, 64), numbers(1, 4, 9, 9)
    folder = Path(tempfile.mkdtemp()) / "package"
    dynamo.package(program, (x, image), folder)
    x, image = numbers(2, 40, 64), numbers(1, 4, 9, 9)
    with torch.no_grad():
        assert_near(dynamo.load_package(folder)(x, image), program(x, image), torch.float16)


PROGRAMS = {each.__name__: each for each in (gemms_and_attention, gradients, convolutions, packages)}

if __name__ == "__main__":
    torch.manual_seed(0)
    for name in sys.argv[1:]:
        PROGRAMS[name]()
