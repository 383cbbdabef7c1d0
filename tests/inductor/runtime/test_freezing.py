"""Frozen weights: the same results, also after they have changed; who is frozen and who is not."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.base import logs
from inductor import compile_fx
from inductor.autotune import gemm_choice
from inductor.driver import freezing
from inductor.ir.graph import Prepared
from inductor.runtime import _launch


class Conv1D(nn.Module):
    """A linear layer whose weight is stored as [k, n]."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, n))
        self.register_buffer("bias", torch.randn(n))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x, self.weight)


def network() -> nn.Module:
    head = nn.Linear(33, 20, bias=False)
    head.weight.data = head.weight.data[:, :33]
    return nn.Sequential(nn.Linear(40, 70), nn.Tanh(), Conv1D(70, 33), nn.GELU(), head)


@pytest.fixture(params=["packed", "onednn", "ours", "plain", "aten"])
def fastest(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def answer(chooser: Any, linear: Any) -> str:
        chooser.ours(linear.dtype)
        if request.param == "packed" and not linear.frozen:
            return "onednn"
        return str(request.param)

    monkeypatch.setattr(gemm_choice.Chooser, "fastest", answer)
    return request.param


def compiled(model: Any) -> Any:
    return dynamo.compile(model, options={"library_kernels": "measure"})


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one whenever something is prepared."""
    calls: list[Any] = []
    prepare = freezing.FrozenCall._prepare

    def counted(self: Any, *rest: Any) -> Any:
        calls.append(1)
        return prepare(self, *rest)

    monkeypatch.setattr(freezing.FrozenCall, "_prepare", counted)
    return calls


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


def test_prepared_once_and_again_after_a_change(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting(monkeypatch)
    model = network()
    fast = compiled(model)
    with torch.no_grad():
        for rows in (5, 5, 5):
            x = torch.randn(rows, 40)
            assert_same(fast(x), model(x))
        before = len(calls)
        assert before == (fastest not in ("aten", "plain"))
        model[2].weight.mul_(2)
        assert_same(fast(x), model(x))
        model[0].weight.data = torch.randn(70, 40)
        assert_same(fast(x), model(x))
        model.load_state_dict(network().state_dict())
        assert_same(fast(x), model(x))
        model[4].weight = nn.Parameter(torch.randn(20, 33))
        assert_same(fast(x), model(x))
        if fastest in ("ours", "packed"):
            assert len(calls) == before + 4
        assert_same(fast(x), model(x))
    assert len(calls) <= before + 4


def test_inference_mode_and_inference_weights(fastest: str) -> None:
    with torch.inference_mode():
        model = network()
        fast, x = compiled(model), torch.randn(3, 40)
        assert_same(fast(x), model(x))
        model[2].weight.mul_(2)  # without a version
        assert_same(fast(x), model(x))
    model = network()
    fast = compiled(model)
    with torch.inference_mode():
        assert_same(fast(x), model(x))
    with torch.no_grad():
        assert_same(fast(x), model(x))


def test_only_parameters_and_buffers(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    fast = compiled(lambda x, w: x @ w.t())
    with torch.no_grad():
        for _ in range(3):
            x, w = torch.randn(5, 9), torch.randn(7, 9)
            assert_same(fast(x, w), x @ w.t())
    assert not calls


def test_weights_that_the_graph_writes(fastest: str) -> None:
    model = Conv1D(12, 9)

    def step(x: Any) -> Any:
        y = model(x)
        model.weight.mul_(0.5)
        return y + model(x)

    other = Conv1D(12, 9)
    other.load_state_dict(model.state_dict())
    fast = compiled(step)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 12)
            y = other(x)
            other.weight.mul_(0.5)
            assert_same(fast(x), y + other(x))


def test_with_gradients_nothing_is_frozen(
    fastest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs.log("inductor"), "enabled", True)
    calls = counting(monkeypatch)
    model = network()
    fast, x = compiled(model), torch.randn(5, 40)
    fast(x).sum().backward()
    assert "nothing is frozen" in capsys.readouterr().err
    assert not calls
    assert model[0].weight.grad is not None


def test_frozen_weights_die_with_the_model() -> None:
    model = network()
    fast = compiled(model)
    with torch.no_grad():
        fast(torch.randn(5, 40))
    seen = weakref.ref(model[0].weight)
    del model, fast
    gc.collect()
    dynamo.reset()
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (1, 1, 6, 6)])
def test_convolutions(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    channels = shape[1]
    convolutions = [nn.Conv2d(channels, 6, 3, padding=1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 1)]
    model = nn.Sequential(*convolutions, nn.ConvTranspose2d(4, 2, 3))
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(shape)
            got, want = fast(x), model(x)
            assert_same(got, want)
            assert got.stride() == want.stride()
        assert len(calls) == 1
        model[1].weight.mul_(3)
        model[0].weight.data = torch.randn_like(model[0].weight)
        assert_same(fast(x), model(x))
    assert len(calls) == 2


def test_options_are_checked() -> None:
    graph, x = torch.fx.symbolic_trace(nn.ReLU()), torch.randn(2)
    with pytest.raises(TypeError, match="config.freezing takes bool"):
        compile_fx(graph, [x], options={"freezing": "yes"})
    with pytest.raises(ValueError, match="no option 'freezin'"):
        compile_fx(graph, [x], options={"freezin": True})


def test_other_memory_at_the_address_of_the_old(fastest: str) -> None:
    """`weight.data = ...` counts as no version, and the allocator gives freed memory away again."""
    model = nn.Linear(200, 200).eval()
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(30, 200)
            torch.testing.assert_close(fast(x), model.forward(x), rtol=1e-4, atol=1e-2)
            address = model.weight.data_ptr()
            for _ in range(10):
                model.weight.data = model.weight.data + 1
                if model.weight.data_ptr() == address:
                    break


def test_writes_that_count_as_no_version(fastest: str) -> None:
    model = network()
    fast, x = compiled(model), torch.randn(5, 40)
    with torch.no_grad():
        fast(x)
        model[0].weight.data.mul_(2)
        assert_same(fast(x), model(x))
        model[2].weight.detach().numpy()[:] = 0.25
        assert_same(fast(x), model(x))


def test_samples_tell_contents_apart() -> None:
    for value in (torch.zeros(1), torch.zeros(3, dtype=torch.int8), torch.zeros(50, 90).t()):
        before = _launch.sample([value])
        assert _launch.sample([value]) == before
        value.view(-1)[-1:].add_(1) if value.is_contiguous() else value[-1, -1].add_(1)
        assert _launch.sample([value]) != before
    assert _launch.sample([torch.zeros(0)]) == _launch.sample([])
    with pytest.raises(TypeError, match="list of tensors"):
        _launch.sample([1])


def test_weights_that_change_at_each_call_are_not_prepared_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(chooser: Any, linear: Any) -> str:
        return "packed" if linear.frozen else "onednn"

    monkeypatch.setattr(gemm_choice.Chooser, "fastest", answer)
    calls = counting(monkeypatch)
    model = nn.Linear(64, 32)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(40):
            x = torch.randn(5, 64)
            assert_same(fast(x), model(x))
            model.weight.mul_(0.97)
    assert 2 <= len(calls) <= 12
    assert not dynamo.counters["not_compiled"]


def test_seldom_changes_are_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_choice.Chooser, "fastest", lambda *_: "packed")
    calls = counting(monkeypatch)
    model = nn.Linear(64, 32)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(20):
            for _ in range(6):
                x = torch.randn(5, 64)
                assert_same(fast(x), model(x))
            model.weight.mul_(0.97)
    assert len(calls) == 20


@pytest.mark.parametrize("megabytes", [0, 1])
def test_limit_of_memory(
    megabytes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(chooser: Any, linear: Any) -> str:
        return "packed" if linear.frozen else "onednn"

    monkeypatch.setattr(gemm_choice.Chooser, "fastest", answer)
    monkeypatch.setattr(logs.log("inductor"), "enabled", True)
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(3)))  # 0.61 MB each
    options = {"library_kernels": "measure", "freezing": megabytes}
    fast, x = dynamo.compile(model, options=options), torch.randn(5, 400)
    with torch.no_grad():
        assert_same(fast(x), model(x))
    assert ("prepared 1 weights, 0.6 MB" in capsys.readouterr().err) == (megabytes == 1)


def test_off_nothing_is_prepared(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    options = {"library_kernels": "measure", "freezing": False}
    model, x = network(), torch.randn(5, 40)
    with torch.no_grad():
        assert_same(dynamo.compile(model, options=options)(x), model(x))
    assert not calls


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 1, "stride": 2, "bias": False},
    {"kernel_size": 3, "groups": 8, "dilation": 2, "padding": (2, 1)},
    {"kernel_size": (1, 3), "groups": 2, "padding": "same"},
]


@pytest.mark.parametrize("how", CONVOLUTIONS)
@pytest.mark.parametrize("size", [(2, 8, 9, 8), (1, 8, 5, 5), (3, 8, 1, 3), (0, 8, 6, 6)])
def test_packed_convolutions(how: Any, size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Conv2d(8, 16, **how).eval()
    x = torch.randn(size)
    if min(size[2], size[3]) + 2 * 2 < 5 or size[2] == 1 and how["kernel_size"] == 3:
        x = torch.randn(size[0], 8, 5, 5)
    x.view(-1)[:1] = float("nan")
    fast = compiled(nn.Sequential(model, nn.ReLU()))
    with torch.no_grad():
        for _ in range(2):
            got, want = fast(x), model(x).relu()
            torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)
            assert got.stride() == want.stride()
            model.weight.mul_(2)


def test_one_weight_for_two_convolutions() -> None:
    weight = nn.Parameter(torch.randn(8, 8, 3, 3))
    model = nn.Module()
    model.weight = weight

    def forward(x: Any) -> Any:
        one = torch.nn.functional.conv2d(x, model.weight, padding=1)
        return torch.nn.functional.conv2d(one[:, :, ::2], model.weight, dilation=2)

    x = torch.randn(2, 8, 12, 12)
    with torch.no_grad():
        fast = compiled(forward)
        torch.testing.assert_close(fast(x), forward(x), rtol=1e-4, atol=1e-3)


def test_batch_norm_and_convolution_keep_one_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the packed weight is made of is not kept beside it."""
    monkeypatch.setattr(logs.log("inductor"), "enabled", True)
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)).eval()
    model[1].running_var.uniform_(0.5, 2)
    fast, x = compiled(model), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        assert_same(fast(x), model(x))
        model[1].running_mean.data.add_(1)
        assert_same(fast(x), model(x))
    assert "prepared 2 weights" in capsys.readouterr().err  # and the bias


def test_what_others_are_made_of_dies_once_they_are_made() -> None:
    """Each is made just before it is needed, and none that nobody needs."""
    order: list[str] = []
    alive: list[weakref.ref[torch.Tensor]] = []

    def make(name: str, *given: torch.Tensor) -> torch.Tensor:
        order.append(name)
        made = sum(given) + torch.zeros(3)
        gc.collect()
        assert sum(ref() is not None for ref in alive if name.startswith("first")) == 0
        if name.startswith("first"):
            alive.append(weakref.ref(made))
        return made

    def item(name: str, *positions: int) -> Prepared:
        return Prepared(positions, functools.partial(make, name))

    prepared = [
        item("first a", 0), item("first b", 1), item("nobody", 0), item("last a", 2),
        item("last b", 3, 1), item("kept", 0), item("of kept", 7, 1),
    ]  # fmt: skip
    x, y = torch.randn(3), torch.randn(3)
    call = freezing.FrozenCall(lambda *values: values, prepared, 2, unused=(2, 3, 4))
    for _ in range(2):
        *_, first, second, nobody, a, b, kept, of_kept = call(x, y)
        assert first is second is nobody is None
        assert a.equal(x) and b.equal(y + y) and kept.equal(x) and of_kept.equal(x + y)
    assert order == ["first a", "last a", "first b", "last b", "kept", "of kept"]
