"""Nested tensors of the jagged layout in compiled functions: one graph for batches of all lengths,
eager's values, gradients and ragged sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nested._internal import sdpa

import dynamo
from dynamo.base.ragged_sizes import is_jagged
from dynamo.testing import CompileCounter

F, nested = nn.functional, torch.nested
BATCHES = ((3, 2, 4), (2, 5, 2), (7, 3, 6), (4, 2))
torch.manual_seed(0)
LINEAR, QKV = nn.Linear(8, 8), nn.Linear(8, 24)
NORM, RMS = nn.LayerNorm(8), nn.RMSNorm(8)
LAYERS = nn.ModuleList([LINEAR, QKV, NORM, RMS])
Program = Callable[[Any], Any]


def batch(*lengths: int, dtype: torch.dtype = torch.float32) -> Any:
    tensors = [torch.randn(n, 8, dtype=dtype) for n in lengths]
    return nested.nested_tensor(tensors, layout=torch.jagged)


def holes(nt: Any) -> Any:
    """Every sequence without its last row."""
    return nested.nested_tensor_from_jagged(nt.values() * 2, nt.offsets(), nt.offsets().diff() - 1)


PROGRAMS: dict[str, Program] = {
    "layers": lambda nt: LINEAR(F.gelu(LINEAR(NORM(nt)))) + nt,
    "rms_norm": lambda nt: RMS(nt) * 2 - nt,
    "dropout": lambda nt: F.dropout(nt, 0.5) + F.dropout(nt, 0.0) + F.dropout(nt, 0.5, False),
    "over the lengths": lambda nt: (nt.softmax(1), nt.softmax(-1)),
    "padded": lambda nt: (nt.to_padded_tensor(0.0), nested.to_padded_tensor(nt, -1.0)),
    "its parts": lambda nt: (nt.values() * 2, nt.offsets().diff(), nt.lengths()),
    "heads": lambda nt: [part.unflatten(-1, [2, 4]).transpose(1, 2) for part in QKV(nt).chunk(3, -1)],
    "sizes": lambda nt: nt.view(nt.size(0), nt.shape[1], 2, 4) * nt.shape[0] + nt.dim(),
    "sizes compared": lambda nt: nt * 2 if nt.shape == (nt + 1).shape and nt.size(1) != 5 else nt,
    "sizes given back": lambda nt: (nt + 1, nt.shape),
    "in a whole": lambda nt: (nt.sum(), nt.unflatten(-1, [2, 4]).flatten(2, 3)),
    "like it": lambda nt: (torch.zeros_like(nt) + nt, nt.double(), nt.detach(), nt.clone()),
    "made inside": lambda nt: nested.nested_tensor_from_jagged(nt.values() * 2, nt.offsets()) + nt,
    "of a list": lambda nt: nested.as_nested_tensor(
        [nt.values()[:2], nt.values()[:1]], layout=torch.jagged).values(),
    "of lengths": lambda nt: nested.nested_tensor_from_jagged(
        nt.values(), lengths=nt.offsets().diff()).mean(-1).values(),
    "holes": lambda nt: (holes(nt) + 1).sum(),
    "joined": lambda nt: torch.cat([nt, nt * 2], dim=-1) * torch.ones(16),
}  # fmt: skip
SEQUENCES: dict[str, Program] = {
    "unbind": lambda nt: [x * 2 for x in nt.unbind()],
    "iterated": lambda nt: [x + 1 for x in nt],
    "with holes": lambda nt: holes(nt).unbind(),
    "reduced": lambda nt: (nt.sum(1), nt.mean(1), nt.amax(1)),
}


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def plain(value: Any) -> Any:
    return value.values() if is_jagged(value) else value


def assert_same(mine: Any, theirs: Any) -> None:
    """Ragged sizes too, which are equal where both have one tensor of offsets."""
    for one, other in zip(leaves(mine), leaves(theirs), strict=True):
        assert type(one) is type(other) and getattr(one, "shape", 0) == getattr(other, "shape", 0)
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert one.requires_grad == other.requires_grad and one.layout is other.layout
        torch.testing.assert_close(plain(one), plain(other))


def gradients(call: Program, nt: Any) -> list[Any]:
    LAYERS.zero_grad()
    leaf = nt.detach().requires_grad_()
    torch.manual_seed(3)
    learning = [plain(out) for out in leaves(call(leaf)) if getattr(out, "requires_grad", False)]
    torch.stack([out.double().pow(2).sum() for out in learning]).sum().backward()
    assert leaf.grad is None or leaf.grad.shape == leaf.shape
    return [leaf.grad, *[weight.grad for weight in LAYERS.parameters()]]


def check(program: Program, compiled: Program, nt: Any, trains: bool) -> None:
    leaf = nt.detach().requires_grad_(trains)
    torch.manual_seed(3)
    mine = compiled(leaf)
    torch.manual_seed(3)
    assert_same(mine, program(leaf))
    if trains:
        pairs = zip(gradients(compiled, nt), gradients(program, nt), strict=True)
        for one, other in pairs:
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(plain(one), plain(other))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_lengths(name: str, backend: str, trains: bool) -> None:
    """A second one where the number of sequences changes."""
    counter = CompileCounter(backend)
    compiled = dynamo.compile(PROGRAMS[name], backend=counter, fullgraph=True)
    for lengths in BATCHES:
        check(PROGRAMS[name], compiled, batch(*lengths), trains)
        assert counter.frame_count == (1 if len(lengths) == 3 else 2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str, backend: str) -> None:
    counter = CompileCounter(backend)
    compiled = dynamo.compile(SEQUENCES[name], backend=counter, fullgraph=True)
    for lengths in BATCHES:
        check(SEQUENCES[name], compiled, batch(*lengths), False)
    assert counter.frame_count == 2


@pytest.mark.parametrize("dynamic", [True, False])
def test_double_precision_with_all_or_no_sizes_open(dynamic: bool) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()).double()
    counter = CompileCounter("inductor")
    compiled = dynamo.compile(lambda nt: layers(nt) + nt, backend=counter, dynamic=dynamic)
    for lengths in BATCHES:
        nt = batch(*lengths, dtype=torch.float64).requires_grad_()
        assert_same(compiled(nt), layers(nt) + nt)
        pair = [torch.autograd.grad(call(nt).values().sum(), nt)[0].values()
                for call in (compiled, lambda nt: layers(nt) + nt)]
        torch.testing.assert_close(*pair)
    assert counter.frame_count == (1 if dynamic else 2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_which_offsets_are_shared(backend: str) -> None:
    """Guarded: eager refuses to add what has offsets of its own, and tells such sizes apart."""

    def add(a: Any, b: Any) -> Any:
        return a * 2 + b if a.shape[1] == b.shape[1] else a * 3

    compiled = dynamo.compile(add, backend=backend, fullgraph=True)
    for _ in range(2):
        a, b = batch(3, 2, 4), batch(3, 2, 4)
        for pair in ((a, b), (a, a + 1), (a, b), (a, a), (b, a)):
            assert_same(compiled(*pair), add(*pair))
    plus = dynamo.compile(lambda a, b: a + b, backend=backend)
    assert_same(plus(a, a * 2), a + a * 2)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise"):
        plus(a, b)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_offsets_stay_the_tensors_that_they_are(backend: str) -> None:
    def make(values: Any, offsets: Any) -> Any:
        made = nested.nested_tensor_from_jagged(values.sin(), offsets)
        own = nested.nested_tensor_from_jagged(values, lengths=offsets.diff())
        return made, made * 2, own, own + 1, own.offsets()

    compiled = dynamo.compile(make, backend=backend, fullgraph=True)
    for lengths in BATCHES:
        nt = batch(*lengths)
        values = nt.values().clone().requires_grad_()
        made, twice, own, more, offsets = compiled(values, nt.offsets())
        assert made.offsets() is twice.offsets() is nt.offsets() and made.shape == nt.shape
        assert own.offsets() is more.offsets() is offsets and own.shape == more.shape != nt.shape
        (grad,) = torch.autograd.grad((made + nt).values().sum(), values)
        torch.testing.assert_close(grad, values.cos())
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_breaks_and_attention(backend: str) -> None:
    """What is no graph runs between graphs: on a CPU attention reads the lengths."""

    def attend(nt: Any) -> Any:
        parts = [part.contiguous().unflatten(-1, [2, 4]).transpose(1, 2)
                 for part in QKV(nt).chunk(3, -1)]
        shape = nt.shape
        dynamo.graph_break()
        out = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return out.reshape(shape) + LINEAR(nt)

    compiled = dynamo.compile(attend, backend=backend)
    for lengths in BATCHES:
        check(attend, compiled, batch(*lengths), True)


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION"])
def test_attention_of_gpus_is_one_graph(kernel: str, monkeypatch: Any) -> None:
    """Compiled as for a GPU; the call fails, since a CPU has no such kernel."""
    chosen = getattr(torch.nn.attention.SDPBackend, kernel)
    monkeypatch.setattr(sdpa, "_select_sdp_backend", lambda *args: chosen)

    def attend(nt: Any) -> Any:
        parts = [part.unflatten(-1, [1, 8]).transpose(1, 2) for part in QKV(nt).chunk(3, -1)]
        return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)

    counter = CompileCounter("inductor")
    compiled = dynamo.compile(attend, backend=counter, fullgraph=True)
    for lengths in BATCHES[:3]:
        with pytest.raises(RuntimeError):
            compiled(batch(*lengths).requires_grad_())
    assert counter.frame_count == 1 and not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_written_in_place(backend: str) -> None:
    compiled = dynamo.compile(lambda nt: nt.mul_(2) + 1, backend=backend, fullgraph=True)
    for lengths in BATCHES:
        nt = batch(*lengths)
        before = nt.clone()
        assert_same(compiled(nt), before * 2 + 1)
        assert_same(nt, before * 2)


def test_errors_are_those_of_eager() -> None:
    for program in (lambda nt: nt.sum(0), lambda nt: nt.view(-1), lambda nt: nt.softmax(0)):
        nt = batch(3, 2, 4)
        with pytest.raises(RuntimeError) as expected:
            program(nt)
        with pytest.raises(RuntimeError) as found:
            dynamo.compile(program, backend="eager")(nt)
        assert str(found.value).split("(")[0] == str(expected.value).split("(")[0]
