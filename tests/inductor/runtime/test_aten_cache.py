"""ATen graphs that an earlier process has cached, of programs with wrapper subclasses, autograd functions and operators,
whose captured graphs have no key: each thing that the key holds is changed, one at a time, and what is computed is compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import dynamo
from dynamo.aot.api import functional_graph
from dynamo.aot.records import FAILS, PART, RECOMPUTED
from dynamo.base import logs
from dynamo.graph_operators.operator_texts import text_of_operator
from dynamo.store import versions
from dynamo.store.records import Uncacheable
from inductor.cache import aten_key
from inductor.cache.aten_key import parts_of_aten
from tests.inductor.runtime.test_graph_cache import (
    autocast,
    default_dtype,
    deterministic,
    folder,
    reused,
    threads,
)
from tests.processes import run_python
from tests.wrapper_tensors import Scaled

__all__ = ["folder"]
aten = torch.ops.aten
TABLE = torch.tensor([0.0, 1.0, 2.0, 4.0])


class Coded(Scaled):
    """Numbers of a table, times a scale for each of the groups of a column and a factor of the program."""

    FACTOR = 2.0

    def plain(self) -> torch.Tensor:
        values = TABLE.to(self.scale.dtype)[self.numbers.long()] * self.FACTOR
        groups = values.reshape(len(self.scale), -1, values.shape[-1]) * self.scale[:, None]
        return groups.reshape(values.shape)


def weight(groups: int = 2, dtype: torch.dtype = torch.float32, kind: str = "row") -> Coded:
    return Coded(torch.arange(64).remainder(4).to(torch.uint8).reshape(8, 8), torch.rand(groups, 8, dtype=dtype), kind)


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def check(*args: Any, hits: int, f: Callable[..., Any] = model, **options: Any) -> None:
    """Compiled anew, f gives what eager gives, with so many graphs from the disk."""
    with torch.no_grad():
        found, count = reused(lambda: dynamo.compile(f, **options)(*args))
        torch.testing.assert_close(found, f(*args))
    assert count == hits


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def test_equal_graphs_of_other_values_hit() -> None:
    for hits in (0, 1, 1):
        check(X * 2, weight(), hits=hits)
    check(X, weight(kind="column"), hits=1)  # which no operation asks for


@pytest.mark.parametrize("x, w", [
    (X, weight(4)),
    (X.double(), weight(dtype=torch.float64)),
    (X[:1], weight()),
    (X.t().contiguous().t(), weight()),
    (X, Coded(weight().numbers.t(), weight().scale)),
    (X, Coded(weight().numbers.to(torch.int8), weight().scale)),
    (X, Coded(weight().numbers, torch.rand(2, 16)[:, ::2])),
    (X, Coded(weight().numbers, torch.rand(1, 8).expand(2, 8))),
    (X, Scaled(weight().numbers, torch.tensor(0.5))),
])  # fmt: skip
def test_another_input_misses(x: torch.Tensor, w: torch.Tensor) -> None:
    check(X, weight(), hits=0)
    check(x, w, hits=0)
    check(X, weight(), hits=1)


def test_what_the_class_does_now_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    check(X, weight(), hits=0)
    for change in (lambda: monkeypatch.setattr(Coded, "FACTOR", 3.0),
                   lambda: monkeypatch.setitem(globals(), "TABLE", TABLE + 1),
                   lambda: monkeypatch.setitem(globals(), "TABLE", TABLE.double())):  # fmt: skip
        change()
        check(X, weight(), hits=0)
        check(X, weight(), hits=1)


def test_a_table_that_is_written_after_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    for hits in (0, 1):
        monkeypatch.setitem(globals(), "TABLE", torch.tensor([0.0, 1.0, 2.0, 4.0]))
        w = weight()
        with torch.no_grad():
            call = dynamo.compile(model)
            _, count = reused(lambda call=call, w=w: call(X, w))  # type: ignore[misc]
            assert count == hits
            TABLE.mul_(3)
            torch.testing.assert_close(call(X, w), model(X, w))


@pytest.mark.parametrize("mode", [autocast, threads, default_dtype, deterministic, torch.inference_mode])
def test_another_mode_misses(mode: Callable[[], Any]) -> None:
    check(X, weight(), hits=0)
    with mode():
        _, count = reused(lambda: dynamo.compile(model)(X, weight()))
    assert count == 0


@pytest.mark.parametrize("options", [{"freezing": False}, {"library_kernels": "default"}, {"leave_out": "fusion"}])
def test_an_option_misses(options: dict[str, Any]) -> None:
    check(X, weight(), hits=0)
    check(X, weight(), hits=0, options=options)
    check(X, weight(), hits=1, options=options)


def test_another_version_misses_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check(X, weight(), hits=0)
    monkeypatch.setattr(logs.log("cache"), "enabled", True)
    for part, target, name, value in (("torch", torch, "__version__", "2.99"),
                                      ("dynamo-jit", versions, "own_source", lambda: "another")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            check(X, weight(), hits=0)
        assert f"the nearest aten differs in: {part}" in capfd.readouterr().err


# -- training --------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, power: int = 2) -> None:
        super().__init__()
        self.power = power
        self.weight = nn.Parameter(weight(), requires_grad=False)
        self.bias = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ self.weight + self.bias) ** self.power).tanh().sum()


def gradients(call: Any, layer: Layer) -> list[torch.Tensor]:
    x = X.clone().requires_grad_()
    layer.bias.grad = None
    call(x).backward()
    assert x.grad is not None and layer.bias.grad is not None
    return [x.grad, layer.bias.grad]


def test_forward_and_backward() -> None:
    for hits, power in ((0, 2), (2, 2), (0, 3), (2, 2)):
        layer = Layer(power)
        found, count = reused(lambda layer=layer: gradients(dynamo.compile(layer), layer))  # type: ignore[misc]
        torch.testing.assert_close(found, gradients(layer, layer))
        assert count == hits


def test_a_wrapper_that_learns() -> None:
    for hits in (0, 2):
        w = nn.Parameter(Scaled(torch.arange(64.0).reshape(8, 8), torch.tensor(0.01)))
        found = []
        for call in (dynamo.compile(model), model):
            w.grad = None
            _, count = reused(lambda call=call, w=w: call(X, w).sum().backward())  # type: ignore[misc]
            assert call is model or count == hits
            found.append(w.grad)
        torch.testing.assert_close(*found)


# -- another process -------------------------------------------------------------------------------

PROGRAM = """
import torch, dynamo
from inductor import metrics
from tests.inductor.runtime.test_aten_cache import Layer, X, check, gradients, weight
check(X, weight(), hits=HITS)
layer = Layer()
torch.testing.assert_close(gradients(dynamo.compile(layer), layer), gradients(layer, layer))
assert metrics.snapshot()["graphs_reused"] == 3 * HITS
"""


def test_another_process_hits(tmp_path: Path) -> None:
    for hits in (0, 1):
        done = run_python("-c", PROGRAM.replace("HITS", str(hits)), DYNAMO_CACHE_DIR=str(tmp_path / "both"), DYNAMO_GRAPH_CACHE="1")
        assert done.returncode == 0, done.stderr


# -- the key alone ---------------------------------------------------------------------------------


def graph() -> fx.GraphModule:
    """Of `x.add(constant)`."""
    captured = fx.symbolic_trace(lambda x: x[:, :4] + 1.5)
    module: Any = functional_graph(captured, [X]).module
    node = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)[0]
    module.table = TABLE
    with module.graph.inserting_before(node):
        read = module.graph.create_node("get_attr", "table")
    read.meta["val"] = node.args[0].meta["val"]
    node.args = (node.args[0], read)
    return module


def key(module: fx.GraphModule, stage: str = "plain") -> dict[str, str]:
    return parts_of_aten(module, stage, (), "a compiler")


def mark(name: str, value: Any) -> Callable[[fx.GraphModule], Any]:
    return lambda module: module.graph.find_nodes(op="placeholder")[0].meta.update({name: value})


def another_fake(**changes: Any) -> Callable[[fx.GraphModule], Any]:
    """The input with other facts."""
    def change(module: fx.GraphModule) -> None:
        meta = module.graph.find_nodes(op="placeholder")[0].meta
        world, facts = meta["val"].world, meta["val"].facts
        given = {name: getattr(facts, name) for name in ("size", "stride", "offset", "dtype", "device", "bits")}
        meta["val"] = world.make(world.cache.facts(*{**given, **changes}.values()))

    return change


def share_memory(module: fx.GraphModule) -> None:
    """The result in the memory of the input."""
    first, *_, last, _ = module.graph.nodes
    last.meta["val"] = first.meta["val"].world.make(last.meta["val"].facts, first.meta["val"].token)


CHANGES: dict[str, Callable[[fx.GraphModule], Any]] = {
    **{name: mark(name, True) for name in (RECOMPUTED, FAILS, PART, "dies", "any other")},
    "value": mark("checks", (("input", 0),)),
    "name": lambda module: module.graph.find_nodes(op="placeholder")[0].__setattr__("name", "y"),
    "values": lambda module: module.meta.update(values=1),
    "constant": lambda module: setattr(module, "table", TABLE + 1),
    "negative zero": lambda module: setattr(module, "table", -TABLE),
    "stride": lambda module: setattr(module, "table", torch.stack([TABLE, TABLE], 1)[:, 0]),
    **{name: another_fake(**{name: value}) for name, value in {
        "size": (4, 9), "stride": (1, 4), "offset": 1, "dtype": torch.float64, "device": torch.device("cuda", 0), "bits": 2,
    }.items()},
    "memory": share_memory,
    "operator": lambda module: setattr([*module.graph.nodes][-2], "target", aten.sub.Tensor),
    "requires_grad": lambda module: [*module.graph.nodes][-2].meta["val"].requires_grad_(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_key_holds(change: str) -> None:
    changed = graph()
    assert key(changed) == key(graph()) != key(graph(), "forward")
    CHANGES[change](changed)
    assert key(changed) != key(graph())


def test_the_key_does_not_hold_the_users_lines() -> None:
    changed = graph()
    mark("stack_trace", "another line")(changed)
    assert key(changed) == key(graph())


LIBRARY = torch.library.Library("aten_cache_test", "FRAGMENT")


def define(name: str, schema: str, **options: Any) -> Any:
    LIBRARY.define(f"{name}{schema}", **options)
    LIBRARY.impl(name, lambda x, *rest: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake(f"aten_cache_test::{name}", lambda x, *rest: torch.empty_like(x), lib=LIBRARY)
    return getattr(torch.ops.aten_cache_test, name).default


def test_operators_of_the_program() -> None:
    """What they compute is none of the key's business: compiled code calls them."""
    twice = define("twice", "(Tensor x) -> Tensor")
    x = torch.randn(3, 4)
    for hits in (0, 1):
        check(x, hits=hits, f=lambda x: twice(x).sin() + 1)


def test_what_is_read_of_an_operator_is_in_its_text() -> None:
    texts = {text_of_operator(define(name, *rest, **options)).replace(name, "") for name, rest, options in [
        ("plain", ["(Tensor x) -> Tensor"], {}), ("more", ["(Tensor x, int n=1) -> Tensor"], {}), ("default", ["(Tensor x, int n=2) -> Tensor"], {}),
        ("writes", ["(Tensor(a!) x) -> Tensor"], {}), ("views", ["(Tensor(a) x) -> Tensor(a)"], {}),
        ("random", ["(Tensor x) -> Tensor"], {"tags": (torch.Tag.nondeterministic_seeded,)}),
        ("order", ["(Tensor x) -> Tensor"], {"tags": (torch.Tag.needs_fixed_stride_order,)}),
    ]}
    assert len(texts) == 7


@pytest.mark.parametrize("change", [
    mark("symbols", object()),
    lambda module: module.meta.update(symbols=None),
    lambda module: setattr(module, "table", torch.zeros(aten_key.LARGEST)),
    lambda module: setattr(module, "table", nn.Parameter(TABLE)),
    lambda module: setattr([*module.graph.nodes][-2], "target", torch.ops.dynamo_kernels),
])  # fmt: skip
def test_what_has_no_key(change: Callable[[fx.GraphModule], Any]) -> None:
    changed = graph()
    change(changed)
    with pytest.raises(Uncacheable):
        key(changed)
