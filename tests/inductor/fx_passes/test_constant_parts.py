"""What a graph of inference computes from weights alone: once, and again after a change."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.fx_passes import constant_parts

Tensor = torch.Tensor


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations whose results became inputs."""
    found: list[str] = []
    original = constant_parts._take

    def counted(module: Any, node: Any) -> Any:
        found.append(str(node.target))
        return original(module, node)

    monkeypatch.setattr(constant_parts, "_take", counted)
    return found


class Standardised(nn.Conv2d):
    """A convolution whose weight is normalised at each call."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, groups=self.groups)


class Biased(nn.Module):
    """Scores with a bias that is looked up by the distance of two positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[-1])
        distance = (at[:, None] - at[None]).clamp(-4, 4) + 4
        return x + self.table(distance).permute(2, 0, 1)


class Projected(nn.Module):
    """Positions are normalised and projected by weights."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(7, 6))
        self.norm, self.up = nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.up(self.norm(self.positions)).t()


class Indexed(nn.Module):
    """A table of indices is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(11))
        self.register_buffer("index", torch.randint(0, 11, (4, 5)))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.table[self.index]).sum(-1)


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.float()


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "standardised": (lambda: Standardised(4, 6, 3), (2, 4, 8, 9)),
    "groups": (lambda: Standardised(4, 6, 3, groups=2), (2, 4, 8, 9)),
    "biased": (Biased, (2, 3, 6, 6)),
    "projected": (Projected, (4, 5)),
    "indexed": (Indexed, (4, 5)),
    "cast": (Cast, (3, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_once_and_again_after_a_change(name: str, taken: list[str]) -> None:
    make, shape = CASES[name]
    model = make().eval()
    fast = dynamo.compile(model)
    with torch.no_grad():
        for turn in range(4):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
            assert len(taken) == 1
            for parameter in model.parameters():
                if turn == 1:
                    parameter.mul_(0.7).add_(0.1)
                elif turn == 2:
                    parameter.data = torch.randn_like(parameter)


def test_it_is_computed_at_one_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    original = constant_parts._computed

    def counted(*args: Any) -> Tensor:
        runs.append(1)
        return original(*args)

    monkeypatch.setattr(constant_parts, "_computed", counted)
    model = Projected().eval()
    fast = dynamo.compile(model)
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(4, 5))
        assert len(runs) == 1
        model.positions.add_(1)
        fast(torch.randn(4, 5))
        assert len(runs) == 2


class Returned(nn.Module):
    """The caller may write into what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.weight.norm(dim=1, keepdim=True)
        return x * norm, norm.t()


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.mul_(0.9)
        return x * self.weight.norm(dim=1, keepdim=True)


class Counted(nn.Module):
    """A buffer of floats may be a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.rand(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales.sum(1, keepdim=True)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(self.weight, 0.5).sum(1, keepdim=True)


class Plain(nn.Module):
    """To add a number costs nothing where the weight is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.weight)


@pytest.mark.parametrize("kind", [Returned, Written, Counted, Noisy, Plain, "off", "gradients"])
def test_at_each_call(kind: Any, taken: list[str]) -> None:
    model = (Projected if isinstance(kind, str) else kind)().eval()
    other = copy.deepcopy(model)
    fast = dynamo.compile(model, options={"freezing": kind != "off"})
    with torch.set_grad_enabled(kind == "gradients"):
        for seed in range(3):
            x = torch.randn((4, 5) if isinstance(kind, str) else (5, 4))
            torch.manual_seed(seed)
            got = fast(x)
            torch.manual_seed(seed)
            want = other(x)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(model.state_dict(), other.state_dict())
            if kind is Returned:
                got[1].zero_()
    assert not taken


def test_no_more_than_there_is_room_for(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Projected().eval(), torch.randn(4, 5)
    monkeypatch.setattr(sys.modules["inductor.driver.inference"], "most_bytes", lambda: 7 * 5 * 4 - 1)
    with torch.no_grad():
        torch.testing.assert_close(dynamo.compile(model)(x), model(x))
    assert not taken


def test_a_large_value_of_a_small_table_is_made_at_each_call(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Biased().eval(), torch.randn(2, 3, 6, 6)
    monkeypatch.setattr(constant_parts, "MOST_BYTES", 100)
    with torch.no_grad():
        torch.testing.assert_close(dynamo.compile(model)(x), model(x))
    assert not taken
