"""Lazy tensors against eager: values, gradients, aliases, looks, errors."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynamo
from dynamo import lazy


def both(program: Callable[[], Any], backend: Any = "eager") -> tuple[Any, Any]:
    """What a program that returns lists of numbers gives in eager and in a mode."""
    torch.manual_seed(0)
    expected = program()
    torch.manual_seed(0)
    with lazy.mode("cpu", backend):
        found = program()
    return expected, found


def same(program: Callable[[], Any], backend: Any = "eager") -> None:
    expected, found = both(program, backend)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def numbers(*tensors: torch.Tensor) -> list[float]:
    return [float(x) for tensor in tensors for x in tensor.detach().reshape(-1).tolist()]


def base_and_view() -> list[float]:
    base = torch.arange(12.0).reshape(3, 4)
    view = base.t()[1:3]
    view.add_(10).mul_(2)
    base[0] += 1
    return numbers(base, view)


def view_before_write() -> list[float]:
    x = torch.ones(4, 4) + 0
    row = x[1]
    y = row * 2
    x.fill_(5)
    return numbers(y, row, x)


def moved_in_place() -> list[float]:
    x = torch.arange(6.0).reshape(2, 3) + 1
    x.t_()
    x.unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    return numbers(x * 2, x.squeeze_(0) + 1)


def gradients_through_views() -> list[float]:
    x = torch.arange(8.0, requires_grad=True)
    y = x * 2
    y[2:5].mul_(3)
    (y.view(2, 4).t() ** 2).sum().backward()
    return numbers(x.grad, y)


def old_and_new() -> list[float]:
    a = torch.ones(3) * 3
    b = a + 2
    a += 1
    first = numbers(a)
    return first + numbers(b) + numbers(a)


def dropped_out() -> list[float]:
    x = torch.ones(50)
    y = functional.dropout(x, 0.5)
    torch.manual_seed(7)
    z = functional.dropout(x, 0.3) + torch.rand(50)
    state = torch.get_rng_state()
    w = torch.randn(50)
    torch.set_rng_state(state)
    return numbers(y, z, w, torch.randn(50), torch.rand_like(w), torch.empty(5).uniform_(2, 3))


def by_value() -> list[float]:
    x = torch.arange(10.0) - 4
    found = x[x > 0]
    where = torch.nonzero(x > 2)
    return [*numbers(found * 2, where), *numbers(torch.unique(x.abs()))]


def branches() -> list[float]:
    x, steps = torch.full((5,), 40.0), 0
    while x.sum() > 3:
        x, steps = x / 2, steps + 1
    return [*numbers(x), steps]


def cast() -> list[float]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.randn(4, 4) @ torch.randn(4, 4)
        first = x.float().sum().item()  # ends the trace inside of autocast
        y = x @ torch.randn(4, 4)
        assert y.dtype is torch.bfloat16
    return [first, *numbers(y.float())]


def outs() -> list[float]:
    x, out = torch.arange(4.0), torch.zeros(4)
    torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    return numbers(out)


def lists() -> list[float]:
    xs = [torch.ones(3) * n for n in range(3)]
    torch._foreach_mul_(xs, 2.5)
    torch._foreach_add_(xs, xs, alpha=0.5)
    return numbers(*xs, *torch._foreach_sqrt(xs), *torch.ones(5, 2).split(2))


def scaled() -> list[float]:
    x, y = torch.arange(1.0, 4.0), torch.ones(3) * 2
    z = torch.add(x, 1, alpha=2.5) + torch.sub(x, y, alpha=0.3) + torch.add(x, 3.5, alpha=2)
    return numbers(z, torch.addcdiv(x, x, y, value=0.7), torch.addcmul(x, x, y, value=0.7),
                   torch.lerp(x, y, 0.8), torch.lerp(x, y, 0.2), 2.5 - x, 2.5 / x)


def by_default_dtype() -> list[float]:
    whole = torch.arange(4) + 1
    kinds = [(whole / 3).dtype.itemsize, whole.sqrt().dtype.itemsize]
    torch.set_default_dtype(torch.float64)
    try:
        return [*kinds, (whole / 3).dtype.itemsize, *numbers(whole / 3, torch.ones(2) * 0.1)]
    finally:
        torch.set_default_dtype(torch.float32)


def complexes() -> list[float]:
    x = torch.complex(torch.arange(3.0), torch.ones(3))
    return numbers((x.conj() * x).real, torch.view_as_real(x.conj().resolve_conj()))


PROGRAMS = [base_and_view, view_before_write, moved_in_place, gradients_through_views, old_and_new,
            dropped_out, by_value, branches, cast, outs, lists, scaled,
            by_default_dtype, complexes]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_gives_what_eager_gives(program: Callable[[], Any], backend: str) -> None:
    same(program, backend)


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=False),
    "adamw": lambda ps: torch.optim.AdamW(ps, 1e-2),
    "adam_list": lambda ps: torch.optim.Adam(ps, 1e-2, foreach=True),
}


def train(model: nn.Module, optimizer: Any, context: Any, steps: int = 4) -> list[float]:
    torch.manual_seed(1)
    losses = []
    with context:
        for _ in range(steps):
            loss = model(torch.randn(5, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lazy.mark_step()
            losses.append(loss)
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_step_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.1),
                          nn.Linear(6, 4))  # fmt: skip
    other = copy.deepcopy(model)
    expected = train(model, OPTIMIZERS[name](model.parameters()), contextlib.nullcontext())
    found = train(other, OPTIMIZERS[name](other.parameters()), lazy.mode("cpu"))
    assert found == pytest.approx(expected, rel=1e-4)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b.detach(), a.detach())
    metrics = lazy.metrics()
    assert metrics.traces == 4 and not metrics.fallbacks
    # The first step makes the optimizer's state, the second is the first that reads it.
    assert (metrics.compiles, metrics.hits) == ((1, 3) if name == "sgd" else (2, 2))


def test_operator_whose_rule_fails_runs_in_eager() -> None:
    model, x = nn.LSTM(8, 6, 2, batch_first=True), torch.randn(3, 5, 8)
    expected = model(x)[0].detach()
    with lazy.mode("cpu"):
        found = model(x)[0]
        found.sum().backward()
    torch.testing.assert_close(lazy.eager(found), expected)


def test_batch_norm_writes_its_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    other = copy.deepcopy(model)
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    with lazy.mode("cpu"):
        found = other(x)
        assert other[1].num_batches_tracked.tolist() == 1
    torch.testing.assert_close(lazy.eager(found), expected.detach())
    torch.testing.assert_close(other[1].running_mean, model[1].running_mean)


def test_numbers_are_inputs_but_zero_and_one_are_not() -> None:
    x = torch.arange(3.0)
    with lazy.mode("cpu"):
        for factor in (2.5, 3.5, 4.5):
            assert numbers(x * factor) == pytest.approx([0, factor, 2 * factor])
        assert (lazy.metrics().compiles, lazy.metrics().hits) == (1, 2)
        assert numbers(x * 1.0) == [0, 1, 2]
    assert lazy.metrics().hits == 2


def test_growing_sizes_do_not_compile_at_each_step() -> None:
    with lazy.mode("cpu"):
        x = torch.ones(2)
        for _ in range(6):
            x = torch.cat([x, x.sum().reshape(1)])
            assert x.tolist()[-1] == 2 ** (len(x) - 2)
    metrics = lazy.metrics()
    assert metrics.by_operator >= 4 and metrics.compiles <= 2


def test_only_what_lives_is_computed() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    with lazy.mode("cpu", backend):
        x = torch.ones(4) * 2
        y = (x + 1).exp()
        lazy.mark_step()
    (output,) = [node for node in graphs[0].graph.nodes if node.op == "output"]
    assert [node.name for node in output.args[0]] == ["mul_tensor", "exp_default"]
    assert y.shape == (4,)


def test_explain_names_the_line() -> None:
    with lazy.mode("cpu", "eager"):
        x = torch.ones(3) + 1
        assert x.sum() == 6
    end = lazy.explain()[0]
    assert __file__ in end.place and "test_explain_names_the_line" in end.place
    assert "looks at a value" in end.reason and end.how == "compiled"


def test_fallbacks_are_counted() -> None:
    with lazy.mode("cpu", "eager"):
        x = torch.arange(4.0) + 1
        y = torch.nonzero(x > 2) + 0
    assert y.tolist() == [[2], [3]]
    assert lazy.metrics().operators == {"aten.nonzero.default": 1}


def test_backend_that_fails_runs_operator_by_operator() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise KeyError("no")

    x = torch.ones(3)
    with lazy.mode("cpu", broken), pytest.warns(UserWarning, match="does not compile"):
        for _ in range(2):
            x.mul_(2)
            lazy.mark_step()
    assert x.tolist() == [4, 4, 4]
    assert (lazy.metrics().failures, lazy.metrics().by_operator) == (1, 2)


def test_graph_that_fails_when_it_runs_gives_eagers_result() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            raise KeyError("no")
        return call

    def step() -> list[float]:
        return (torch.ones(3) + 1).tolist()  # type: ignore[no-any-return]

    dynamo.counters.clear()
    with lazy.mode("cpu", broken), pytest.warns(UserWarning, match="defect of the backend 'broken'") as told:
        assert [step() for _ in range(5)] == [[2, 2, 2]] * 5
    assert lazy.metrics().failures == 1 == len(told) and __file__ in str(told[0].message)
    assert dynamo.counters["not_compiled"] == {"call failed: KeyError": 1}
    with dynamo.config.patch(suppress_errors=False), lazy.mode("cpu", broken):
        with pytest.raises(dynamo.exc.InternalError, match="fails when it is called.*KeyError"):
            (torch.ones(3) * 3).tolist()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_error_of_the_program_is_eagers_and_loses_nothing(backend: str) -> None:
    with lazy.mode("cpu", backend):
        x = torch.ones(2, 3) + 1
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            x @ x
        good = x * 3
        bad = functional.embedding(torch.tensor([1, 9]) + 0, x)
        with pytest.raises(IndexError):
            bad.sum().item()
        assert good.tolist() == [[6, 6, 6], [6, 6, 6]]
        with pytest.raises(lazy.LazyError, match="has no value"):
            (bad + 1).tolist()


def test_ordinary_tensors_keep_their_meaning_outside_of_a_mode() -> None:
    x, y = lazy.tensor(torch.ones(3)), torch.ones(3)
    z = x + y
    y.add_(5)  # the trace has read it already
    assert z.tolist() == [2, 2, 2]
    y.add_(x)
    assert type(y) is torch.Tensor and y.tolist() == [7, 7, 7]


def test_numpy_memory_is_never_read_late() -> None:
    with lazy.mode("cpu", "eager"):
        x = torch.zeros(3)
        array = x.numpy()
        y = x + 1
        array[:] = 5
        x.add_(1)
        assert array.tolist() == [6, 6, 6]
        assert y.tolist() == [1, 1, 1]
        ordinary = torch.from_numpy(array)
        z = ordinary * 2
        array[:] = 0
        assert z.tolist() == [12, 12, 12]


def test_write_to_an_ordinary_tensor_is_seen() -> None:
    weight = torch.ones(3)
    with lazy.mode("cpu", "eager"):
        weight.mul_(torch.full((3,), 3.0))
        assert weight.tolist() == [3, 3, 3]
        weight.add_(1)
        assert pickle.loads(pickle.dumps(weight)).tolist() == [4, 4, 4]
        weight.add_(1)
        assert copy.deepcopy(weight).tolist() == [5, 5, 5]
        weight.add_(1)
    assert weight.tolist() == [6, 6, 6]


def test_describing_an_operator_is_no_look() -> None:
    weight, x = torch.ones(3, 7), torch.randn(2, 3, 5, 9)
    with lazy.mode("cpu", "eager"):
        weight.mul_(torch.full((3, 7), 2.0))
        y, _ = x.kthvalue(2)
        lazy.mark_step()
    assert y.shape == (2, 3, 5)
    assert [end.reason for end in lazy.explain()] == ["lazy.mark_step()"]


def test_shared_parameter_views_are_written_as_in_eager() -> None:
    def program() -> list[float]:
        weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        turned = weight.detach().t()
        first = turned.sum().item()  # both enter the next trace, and share memory
        with torch.no_grad():
            before = turned * 1.5
            weight.mul_(2)
        return [first, *numbers(before, turned, weight)]

    same(program, "inductor")


def test_data_of_a_lazy_tensor_can_be_swapped() -> None:
    x = lazy.tensor(torch.ones(2))
    x.data = lazy.tensor(torch.zeros(3))
    assert x.shape == (3,) and (x + 1).tolist() == [1, 1, 1]


def test_other_thread_goes_on_with_the_trace() -> None:
    x = lazy.tensor(torch.ones(4)) * 2
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((x + 1).tolist()))
    thread.start()
    thread.join()
    assert found == [[3, 3, 3, 3]] and x.tolist() == [2, 2, 2, 2]


def test_devices_and_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="cpu"):
        lazy.mode("tpu")
    with pytest.raises(TypeError, match="list"):
        lazy.tensor([1, 2])  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no CUDA device"):
            lazy.mode("cuda")


def test_long_trace_is_cut() -> None:
    with lazy.mode("cpu", "eager", longest=10):
        x = torch.zeros(3)
        for _ in range(25):
            x = x + 1
        assert x.tolist() == [25, 25, 25]
    assert [end.reason for end in lazy.explain()][:2] == ["the trace is long"] * 2


def test_printing_and_copying() -> None:
    x = lazy.tensor(torch.tensor([1.0, 2.0])).requires_grad_()
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 4.], grad_fn=<MulBackward0>)"
    assert f"{x.sum():.1f}" == "3.0"
    twin = copy.deepcopy(x)
    assert twin.requires_grad and twin.tolist() == [1, 2]
    with lazy.mode("cpu", "eager"):
        assert repr(x + 1) == "tensor([2., 3.], grad_fn=<AddBackward0>)"
    loaded = pickle.loads(pickle.dumps(x))
    assert type(loaded) is torch.Tensor and loaded.requires_grad
