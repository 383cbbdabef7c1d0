"""einops: patterns are read once; its cached functions end no graph, whichever sizes come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import (
    EinopsError,
    asnumpy,
    einsum,
    pack,
    parse_shape,
    rearrange,
    reduce,
    repeat,
    unpack,
)
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

import dynamo
from dynamo.testing import CompileCounter

STATE: dict[str, int] = {}


def attention(x: torch.Tensor) -> torch.Tensor:
    q, k, v = rearrange(x, "b n (three h d) -> three b h n d", three=3, h=2)
    scores = einsum(q, k, "b h i d, b h j d -> b h i j")
    return rearrange(scores.softmax(-1) @ v, "b h n d -> b n (h d)")


def patches(x: torch.Tensor) -> torch.Tensor:
    b, n, c = parse_shape(x, "b n c").values()
    image = repeat(x, "b n c -> b c n w", w=4)
    return reduce(image, "b c (n two) w -> b n (c w)", "max", two=2) * (b + n + c)


def packed(x: torch.Tensor) -> Any:
    both, shapes = pack([x, x[:, 0], x[..., None]], "b *")
    return unpack(both * 2, shapes, "b *"), reduce(x, "b ... -> b", "mean")


def after_changes(x: torch.Tensor) -> torch.Tensor:
    STATE["calls"] = STATE.get("calls", 0) + 1
    return rearrange(x, "first second third -> third (second first) 1")


def refused(x: torch.Tensor) -> torch.Tensor:
    try:
        return rearrange(x, "b n (c seven) -> seven", seven=7)
    except EinopsError as error:
        return x + len(str(error))


PROGRAMS = [attention, patches, packed, after_changes, refused]


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_functions(f: Any, dynamic: bool | None) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter, dynamic=dynamic, fullgraph=f is not refused)
    for sizes in ((2, 6, 12), (2, 6, 12), (3, 8, 12), (5, 10, 12)):
        x = torch.randn(sizes, requires_grad=True)
        again = x.detach().requires_grad_()
        STATE.clear()
        result = compiled(x)
        left = dict(STATE)
        STATE.clear()
        expected = f(again)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        assert left == STATE
        for tensor in (result, expected):
            torch.stack([part.sum() for part in _tensors(tensor)]).sum().backward()
        torch.testing.assert_close(x.grad, again.grad)
    if f is not refused:
        assert counter.frame_count <= {None: 2, False: 3, True: 1}[dynamic]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)]


def test_sizes_of_patterns_that_change() -> None:
    def f(x: torch.Tensor, heads: int) -> torch.Tensor:
        return rearrange(x, "b (h d) -> h b d", h=heads)

    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    for heads in (2, 3, 4, 6):
        x = torch.randn(2, 12)
        assert torch.equal(compiled(x, heads), f(x, heads))
    assert counter.frame_count <= 2


def test_layers() -> None:
    module = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4), nn.Linear(48, 16),
        Reduce("b n d -> b d", "mean"),
        EinMix("b d -> b e", weight_shape="d e", bias_shape="e", d=16, e=3),
    )  # fmt: skip
    counter = CompileCounter()
    compiled = dynamo.compile(module, backend=counter, fullgraph=True)
    for size in (16, 16, 24, 32):
        x = torch.randn(2, 3, size, 16)
        torch.testing.assert_close(compiled(x), module(x))
    assert counter.frame_count <= 2


def test_default_backend() -> None:
    compiled = dynamo.compile(attention)
    for length in (6, 9, 11):
        x = torch.randn(2, length, 12, requires_grad=True)
        again = x.detach().requires_grad_()
        torch.testing.assert_close(compiled(x), attention(again))
        compiled(x).square().sum().backward()
        attention(again).square().sum().backward()
        torch.testing.assert_close(x.grad, again.grad)


def test_arrays() -> None:
    def f(x: torch.Tensor) -> Any:
        return asnumpy(rearrange(x, "a b -> b a")).sum()

    x = torch.randn(2, 3)
    assert dynamo.compile(f, backend="eager")(x) == pytest.approx(f(x))
