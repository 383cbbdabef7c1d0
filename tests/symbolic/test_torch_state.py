"""State of torch that a program changes while it runs: seeds, default dtype, default device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.exc import Unsupported
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.table import RULES, Rule
from dynamo.symbolic.tensors import devices as device_rules
from dynamo.testing import CompileCounter
from tests.processes import run_python

SEED = inspect.unwrap(torch.manual_seed)  # torch's own compiler, once used in the process, wraps it


def seeded(x: torch.Tensor, n: int) -> Any:
    before = torch.rand(2)
    SEED(n)
    return before, F.dropout(x, 0.5) + torch.rand(3), torch.randn(2)


def state_put_back(x: torch.Tensor, n: int) -> Any:
    state = torch.get_rng_state()
    a = torch.rand(3) * x
    torch.set_rng_state(state)
    return a, torch.rand(3), state, state.sum()


def forked(x: torch.Tensor, n: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        SEED(4)
        a = F.dropout(x.sin(), 0.5)
    with torch.random.fork_rng(enabled=False):
        b = torch.rand(2)
    return a, b, torch.rand(3)


def fork_left_by_an_error(x: torch.Tensor, n: int) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            a = torch.rand(3)
            raise ValueError("inside")
    except ValueError as error:
        return a * x, str(error), torch.rand(3)


def dtype_changed(x: torch.Tensor, n: int) -> Any:
    torch.set_default_dtype(torch.float64)
    a = torch.ones(3) * 2 + torch.rand(3) + torch.tensor(1.5)
    torch.set_default_dtype(torch.float32)
    return a * x, a.dtype, torch.full((2,), 0.5), (torch.arange(3) / 2).exp()


def dtype_left_changed(x: torch.Tensor, n: int) -> Any:
    torch.set_default_dtype(torch.float64)
    return torch.zeros(2) + x.sum(), torch.arange(3) / 2


def devices(x: torch.Tensor, n: int) -> Any:
    with torch.device("meta") as device:
        a = torch.ones(3) + torch.arange(3)
        with torch.device("cpu"):
            b = torch.ones(3) * x + torch.tensor([1.0, 2.0, 3.0])
            inner = torch.get_default_device()
        c = torch.zeros(2, device="cpu") + torch.zeros_like(x[0, :2]) + x.new_ones(2)
        d = torch.linspace(0, 1, 4, device=None)
    return a.device, b, c, d.device, torch.ones(2) * 3, device, inner, torch.get_default_device()


def device_in_a_call(x: torch.Tensor, n: int) -> Any:
    def make(device: str) -> Any:
        with torch.device(device):
            return torch.full((n,), 2.0)

    return make("cpu").sum() * x, make("meta").shape, F.dropout(torch.ones(3), 0.5) * x


def device_left_by_an_error(x: torch.Tensor, n: int) -> Any:
    try:
        with torch.device("meta"):
            raise ValueError("inside")
    except ValueError as error:
        return torch.ones(3) * x, str(error)


ONE_GRAPH = [
    seeded, state_put_back, forked, fork_left_by_an_error, dtype_changed, dtype_left_changed, devices,
    device_in_a_call, device_left_by_an_error,
]


def break_inside(x: torch.Tensor, n: int) -> Any:
    with torch.device("meta"):
        a = torch.ones(3)
        dynamo.graph_break()
        b = torch.ones(n)
    return a.device, b.shape, torch.ones(2) * x[:, :2]


def break_in_a_fork(x: torch.Tensor, n: int) -> Any:
    with torch.random.fork_rng():
        SEED(n)
        dynamo.graph_break()
        a = torch.rand(3)
    return a * x, torch.rand(2)


def forked_with_all_devices(x: torch.Tensor, n: int) -> Any:
    """On a machine with a GPU the states of its generators break the graph."""
    with torch.random.fork_rng():
        a = torch.rand(3)
    return a * x, torch.rand(2)


def module_made_inside(x: torch.Tensor, n: int) -> Any:
    with torch.device("meta"):
        m = torch.nn.Linear(3, 3)
    return m.weight.device, torch.ones(2) * x[:, :2]


def default_device(x: torch.Tensor, n: int) -> Any:
    torch.set_default_device("meta")
    a = torch.ones(3)
    torch.set_default_device(None)
    return a.device, torch.ones(2) * x[:, :2]


def seed_of_another_type(x: torch.Tensor, n: int) -> Any:
    torch.manual_seed(float(n))
    return torch.rand(3) * x, torch.initial_seed()


ANY_GRAPHS = [
    break_inside, break_in_a_fork, forked_with_all_devices, module_made_inside, default_device,
    seed_of_another_type,
]


def observe(f: Callable[..., Any], call: int) -> Any:
    torch.manual_seed(call)
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    try:
        found = f(x, 3 + call)
        flat = [torch.tensor(0) if v is None else v for v in found]
        tensors = [v for v in flat if isinstance(v, torch.Tensor)]
        loss = sum((v.sum() for v in tensors if v.requires_grad), start=torch.zeros(()))
        if loss.requires_grad:
            loss.backward()
        rest = [v for v in flat if not isinstance(v, torch.Tensor)]
        return tensors, x.grad, rest, torch.get_default_dtype(), torch.rand(2)
    finally:
        torch.set_default_dtype(torch.float32)


def check(f: Callable[..., Any], backend: str, fullgraph: bool) -> CompileCounter:
    dynamo.reset()
    counter = CompileCounter(backend)
    compiled = dynamo.compile(f, backend=counter, fullgraph=fullgraph)
    with dynamo.config.patch(suppress_errors=False):
        for call in range(3):
            want, got = observe(f, call), observe(compiled, call)
            assert (got[1] is None) == (want[1] is None)
            for a, b in zip([*got[0], got[4]], [*want[0], want[4]], strict=True):
                torch.testing.assert_close(a, b)
            if want[1] is not None:
                torch.testing.assert_close(got[1], want[1])
            assert got[2:4] == want[2:4]
    return counter


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", ONE_GRAPH)
def test_one_graph(f: Callable[..., Any], backend: str) -> None:
    assert check(f, backend, fullgraph=True).frame_count <= 2  # the number becomes symbolic


@pytest.mark.parametrize("f", ANY_GRAPHS)
def test_any_graphs(f: Callable[..., Any]) -> None:
    check(f, "eager", fullgraph=False)


def test_default_dtype_at_the_call_is_guarded() -> None:
    compiled = dynamo.compile(lambda x: torch.ones(3) * x, backend="eager", fullgraph=True)
    x = torch.rand(3)
    assert compiled(x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_error_in_the_graph_leaves_the_dtype_as_eager_does() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        y = torch.ones(3) * x.index_select(0, at)
        torch.set_default_dtype(torch.float32)
        return y

    compiled = dynamo.compile(program, backend="eager", fullgraph=True)
    compiled(torch.rand(3), torch.tensor([1, 2, 0]))
    try:
        with pytest.raises((IndexError, RuntimeError)):
            compiled(torch.rand(3), torch.tensor([1, 9, 0]))
        left = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        with pytest.raises((IndexError, RuntimeError)):
            program(torch.rand(3), torch.tensor([1, 9, 0]))
        assert left == torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device_is_known_by_the_device() -> None:
    counter = CompileCounter("eager")

    def f(x: torch.Tensor) -> Any:
        torch.set_default_device("meta")
        made = torch.zeros(2)
        torch.set_default_device(None)
        return x + 1, made.device, torch.zeros(2).device

    compiled, x = dynamo.compile(f, backend=counter), torch.ones(2)
    for _ in range(4):
        assert compiled(x)[1:] == f(x)[1:] == (torch.device("meta"), torch.device("cpu"))
    assert counter.frame_count <= 2


ORDERS = """
import sys, torch, dynamo
if "before" in sys.argv: import torch._dynamo
kept = torch.manual_seed

def f(x, set_seed):
    set_seed(3)
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    return x + first, torch.rand(2)

def check(set_seed):
    found = dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2), set_seed)
    wanted = f(torch.ones(2), set_seed)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])

check(torch.manual_seed)
import torch._dynamo
for set_seed in (torch.manual_seed, kept):
    dynamo.reset()
    check(set_seed)
"""


@pytest.mark.parametrize("order", [pytest.param("before", marks=pytest.mark.long), "behind"])
def test_torch_s_own_compiler_may_be_used_in_the_same_process(order: str) -> None:
    done = run_python("-c", ORDERS, order)
    assert done.returncode == 0, done.stderr


def test_questions_about_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants where all GPUs are of one kind; else the current one decides, in each call."""

    def ask(x: torch.Tensor) -> torch.Tensor:
        try:
            able = torch.cuda.get_device_capability() >= (8, 0)
        except (AssertionError, RuntimeError):
            able = False
        return x + 1 if able else x - 1

    x = torch.ones(3)
    for names, breaks in ((["A", "A"], False), (["A", "B"], True)):
        dynamo.reset()
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
        assert torch.equal(dynamo.compile(ask)(x), ask(x))
        assert bool(dynamo.counters["graph_break"]) is breaks


def on_gpu(x: torch.Tensor, n: int) -> Any:
    with torch.cuda.device(n) as entered, torch.cuda.device(-1), torch.cuda.device_of(x):
        torch.cuda.set_device(torch.device("cuda", 0))
        return x.sin() + torch.cuda.current_device(), entered


def test_the_current_gpu_is_entered_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if GPU 0 were there: another one breaks the graph."""
    monkeypatch.setattr(device_rules, "current_gpu", lambda tx: ConstVar(0))
    monkeypatch.setitem(RULES, torch.cuda.current_device, [Rule((), lambda tx: ConstVar(0))])
    x = torch.randn(3)
    result, entered = dynamo.compile(on_gpu, fullgraph=True)(x, 0)
    assert result.equal(x.sin()) and entered is None
    with pytest.raises(Unsupported, match="torch.cuda.device"):
        dynamo.compile(on_gpu, fullgraph=True)(x, 1)


def about_gpus(x: torch.Tensor) -> Any:
    count = torch.cuda.get_device_properties(torch.device("cuda", 0)).multi_processor_count
    return x * count


def test_what_is_known_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one GPU of 132 multiprocessors were there."""
    facts = SimpleNamespace(multi_processor_count=132)
    for name, answer in (("device_count", 1), ("get_device_name", "one"),
                         ("get_device_properties", facts)):  # fmt: skip
        function = getattr(torch.cuda, name)
        fake = functools.wraps(function)(lambda *args, answer=answer: answer)
        monkeypatch.setattr(torch.cuda, name, fake)
        if function in RULES:
            monkeypatch.setitem(RULES, fake, RULES[function])
    x = torch.randn(3)
    assert dynamo.compile(about_gpus, fullgraph=True)(x).equal(x * 132)
