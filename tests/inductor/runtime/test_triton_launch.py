"""Launchers of Triton functions without Triton: what goes the short way and what the long way."""

from __future__ import annotations

import pytest
import torch

from inductor.runtime import triton_launch
from inductor.runtime.triton_launch import Preparation, keep, view


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.runs: list[tuple] = []

    def run(self, *args) -> None:
        self.runs.append(args)


class Function:
    """In the place of a Triton function."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.compiled = Compiled()

    def __getitem__(self, grid):
        def launch(*tensors, **keywords):
            self.calls.append((grid, tensors, keywords))
            return self.compiled

        return launch


@pytest.fixture
def stream(monkeypatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77, raising=False)


CHOICES = (((4, 2, 1), 64, 8, 4), ((8, 1, 1), 32, 8, 4))
DTYPES = (torch.float32, torch.float32)


def test_second_call_goes_the_short_way(stream) -> None:
    function = Function()
    launcher = Preparation(torch.device("cuda", 0)).prepare(function, CHOICES, DTYPES, (0,), False, True)
    tensors = torch.randn(64), torch.randn(64)
    for _ in range(3):
        launcher(*tensors)
    (grid, given, keywords), = function.calls
    assert grid == (4, 2, 1) and given == tensors
    assert keywords["XBLOCK"] == 64 and keywords["RBLOCK"] == 8 and keywords["num_warps"] == 4
    expected = (4, 2, 1, 77, "function", "metadata", None, None, None,
                tensors[0].data_ptr(), tensors[1].data_ptr(), 64, 8)
    assert function.compiled.runs == [expected] * 2


def test_odd_addresses_go_the_long_way(stream) -> None:
    """A kernel that was compiled for aligned addresses never sees others, nor the other way round."""
    function = Function()
    launcher = Preparation(torch.device("cuda", 0)).prepare(function, CHOICES, DTYPES, (0,), False, True)
    even, odd = torch.randn(64), torch.randn(65)[1:]
    launcher(odd, even)
    launcher(odd, even)
    assert len(function.calls) == 2 and not function.compiled.runs
    launcher(even, even)
    launcher(even, even)
    assert len(function.calls) == 3 and len(function.compiled.runs) == 1
    launcher(odd, even)
    assert len(function.calls) == 4 and len(function.compiled.runs) == 1


def test_view_counts_from_the_tensor() -> None:
    tensor = torch.arange(24.0)[4:]
    assert torch.equal(view(tensor, (2, 3), (6, 1), 2), torch.tensor([[6.0, 7, 8], [12, 13, 14]]))
    assert view(tensor, (20,), (1,), 0, torch.int32).dtype is torch.int32


def test_keep_moves_only_what_lies_differently() -> None:
    tensor = torch.randn(3, 4)
    assert keep(tensor, (3, 4), (4, 1)) is tensor
    moved = keep(tensor, (3, 4), (1, 3))
    assert moved.stride() == (1, 3) and torch.equal(moved, tensor)
    row = torch.randn(1, 4)
    assert keep(row, (1, 4), (99, 1)) is row
    with pytest.raises(RuntimeError, match="expected a tensor of size"):
        keep(tensor, (4, 3), (3, 1))


def test_measuring_wants_repeatable_kernels() -> None:
    preparation = Preparation(torch.device("cuda", 0), measure=True)
    assert preparation.prepare(Function(), CHOICES, DTYPES, (), False, True).measure
    assert not preparation.prepare(Function(), CHOICES, DTYPES, (), False, False).measure
    assert triton_launch.MEASURED_RUNS > 1
