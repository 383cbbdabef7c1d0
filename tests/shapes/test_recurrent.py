"""Recurrent layers over sequences of changing lengths: two compiles, eager's results and gradients."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import dynamo
from dynamo.graph_operators import cuts
from dynamo.testing import CompileCounter

SIZES = [(3, 4), (5, 7), (2, 9), (7, 3), (4, 4)]
LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, all": (nn.LSTM, {"num_layers": 2, "batch_first": True, "bidirectional": True, "dropout": 0.5}),
    "lstm, projected": (nn.LSTM, {"proj_size": 3, "batch_first": True, "dtype": torch.float64}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru, all": (nn.GRU, {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "dtype": torch.float64}),
    "tanh": (nn.RNN, {"bidirectional": True, "bias": False}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True, "num_layers": 2}),
}


class Tagger(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        layer, options = LAYERS[kind]
        dtype = options.get("dtype", torch.float32)
        self.before, self.layer = nn.Linear(6, 6, dtype=dtype), layer(6, 5, **options)
        width = options.get("proj_size", 5) * (2 if self.layer.bidirectional else 1)
        self.after = nn.Linear(width, 2, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        found, last = self.layer(self.before(x).relu())
        return self.after(found).tanh(), last


def flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [leaf for item in found for leaf in flat(item)]


def outcome(model: Any, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    results = flat(model(*inputs))
    if torch.is_grad_enabled():
        total = torch.stack([t.sin().sum() for t in results if t.is_floating_point()]).sum()
        results += torch.autograd.grad(total, parameters)
    return results


def compare(model: nn.Module, compiled: Any, inputs: list[Tensor]) -> None:
    parameters = list(model.parameters())
    found, wanted = outcome(compiled, inputs, parameters), outcome(model, inputs, parameters)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]


@pytest.mark.parametrize(
    ("kind", "training"), [*((kind, True) for kind in LAYERS), ("lstm", False), ("gru, all", False)])
def test_two_graphs_for_all_lengths(kind: str, training: bool) -> None:
    model = Tagger(kind).train(training)
    counter = CompileCounter("eager")
    compiled = dynamo.compile(model, backend=counter)
    for n, m in SIZES:
        x = torch.randn(n, m, 6, dtype=model.before.weight.dtype)
        with torch.set_grad_enabled(training):
            compare(model, compiled, [x])
    assert counter.frame_count == 2


@pytest.mark.parametrize("training", [False, True])
def test_on_the_default_backend(training: bool) -> None:
    model = Tagger("gru, all").train(training)
    counter = CompileCounter("inductor")
    compiled = dynamo.compile(model, backend=counter, dynamic=True)
    for n, m in SIZES:
        with torch.set_grad_enabled(training):
            compare(model, compiled, [torch.randn(n, m, 6, dtype=torch.float64)])
    assert counter.frame_count == 1


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static sizes are one operation, too."""
    monkeypatch.setattr(cuts, "TAKEN_APART", set())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", LAYERS)
def test_one_graph_for_static_sizes(kind: str, backend: str, as_on_a_gpu: None) -> None:
    model = Tagger(kind)
    counter = CompileCounter(backend)
    compiled = dynamo.compile(model, backend=counter, fullgraph=True, dynamic=False)
    x = torch.randn(3, 4, 6, dtype=model.before.weight.dtype)
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            compare(model, compiled, [x])
    assert counter.frame_count == 2
    [layer] = [node for node in counter.graphs[0].graph.nodes if node.target in cuts.RECURRENT]
    assert cuts.is_cut(layer)


def test_static_sizes_that_do_not_fit(as_on_a_gpu: None) -> None:
    layer = nn.GRU(6, 5, device="cpu")
    direct = lambda x, h: torch.gru(x, h, layer._flat_weights, True, 1, 0.0, True, False, False)  # noqa: E731

    @dynamo.compile(backend="eager", dynamic=False)
    def guarded(x: Tensor, h: Tensor) -> Any:
        try:
            return direct(x * 2, h)
        except RuntimeError as error:
            return str(error)

    for data, state in (((3, 4, 6), (1, 3, 5)), ((0, 4, 6), (1, 4, 5)), ((3, 4, 6), (1, 4, 3)), ((3, 4, 5), (1, 4, 5))):
        x, h = torch.randn(data, device="cpu"), torch.randn(state, device="cpu")
        with pytest.raises(RuntimeError) as wanted:
            direct(x * 2, h)
        assert guarded(x, h).splitlines()[0] == str(wanted.value).splitlines()[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["lstm", "lstm, projected", "gru", "gru, all", "tanh"])
def test_two_graphs_under_autocast(kind: str, dtype: torch.dtype) -> None:
    model = Tagger(kind).float()
    counter = CompileCounter("eager")
    device = torch.get_default_device().type
    compiled = dynamo.compile(model, backend=counter)
    for n, m in SIZES:
        x = torch.randn(n, m, 6)
        with torch.autocast(device, dtype):
            compare(model, compiled, [x])
    assert counter.frame_count == 2


@pytest.mark.parametrize("batched", [False, True])
def test_a_given_state_and_its_gradient(batched: bool) -> None:
    layer = nn.LSTM(6, 5, batch_first=True)
    counter = CompileCounter("eager")
    compiled = dynamo.compile(lambda x, h, c: layer(x, (h, c)), backend=counter, dynamic=True)
    for n, m in SIZES:
        shape = (1, n, 5) if batched else (1, 5)
        h, c = torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)
        x = torch.randn((n, m, 6) if batched else (m, 6))
        results = [compiled(x, h, c), layer(x, (h, c))]
        grads = [torch.autograd.grad(found.sum() + last[1].sum(), [h, c]) for found, last in results]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*grads)
    assert counter.frame_count == 1


def test_a_cell_and_sizes_that_do_not_fit() -> None:
    """One graph for all batches; errors are eager's."""
    cell = nn.GRUCell(6, 5)
    direct = lambda x, h: torch.gru_cell(x, h, *cell.parameters())  # noqa: E731
    counter = CompileCounter("aot_eager")
    compiled = dynamo.compile(direct, backend=counter, dynamic=True)
    for n in (13, 5, 2, 9):
        given = [torch.randn(n, 6), torch.randn(n, 5)]
        torch.testing.assert_close(*(outcome(f, given, [*cell.parameters()]) for f in (compiled, direct)))
        with torch.autocast("cpu", torch.bfloat16, n == 2):
            torch.testing.assert_close(compiled(*given), direct(*given), atol=1e-2, rtol=1e-2)
    assert counter.frame_count <= 2  # under autocast another
    for sizes in [(3, 5, 3, 5), (3, 6, 4, 5), (3, 6, 3, 4)]:
        given = [torch.randn(*sizes[:2]), torch.randn(*sizes[2:])]
        with pytest.raises(RuntimeError) as wanted:
            direct(*given)
        with pytest.raises(RuntimeError, match=re.escape(str(wanted.value))):
            compiled(*given)


def test_sizes_that_do_not_fit_raise_as_in_eager() -> None:
    layer = nn.GRU(6, 5)
    direct = lambda x, h: torch.gru(x, h, layer._flat_weights, True, 1, 0.0, True, False, False)  # noqa: E731
    compiled = dynamo.compile(direct, backend="eager", dynamic=True)
    for n, m in SIZES:
        with pytest.raises(RuntimeError) as wanted:
            direct(torch.randn(n, m, 6), torch.randn(1, m + 2, 5))
        with pytest.raises(RuntimeError) as found:
            compiled(torch.randn(n, m, 6), torch.randn(1, m + 2, 5))
        assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


class Packed(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer, self.after = kind(6, 5, bidirectional=True), nn.Linear(10, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        found, _ = self.layer(packed)
        padded, lengths = pad_packed_sequence(found, batch_first=True)
        return self.after(padded).relu(), lengths


def test_packed_sequences_need_no_compile_after_the_second_length() -> None:
    model = Packed(nn.LSTM)
    counter = CompileCounter("eager")
    compiled, counts = dynamo.compile(model, backend=counter), []
    for n, m in SIZES:
        compare(model, compiled, [torch.randn(n, m, 6), torch.randint(1, m + 1, (n,), device="cpu")])
        counts.append(counter.frame_count)
    assert counts[1] == counts[-1] <= 10
    layers = [node for gm in counter.graphs[:4] for node in gm.graph.nodes if node.target in cuts.RECURRENT]
    assert layers and all(map(cuts.is_cut, layers))
