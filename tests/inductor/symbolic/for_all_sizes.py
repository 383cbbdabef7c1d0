"""A program captured once with symbolic sizes, compiled once, and run at many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.graphs import LITERAL
from inductor import metrics
from inductor.driver.from_aten import compile_aten
from inductor.lowering.registry import LOWERINGS

SIZES = (2, 3, 7, 16, 17, 64, 129, 1000)


def capture(
    program: Callable[..., Any], inputs: Sequence[Any], mode: str = "symbolic"
) -> torch.fx.GraphModule:
    """The ATen graph of a program, with SymInts for the sizes of its inputs, or for these sizes."""
    known = default_decompositions()
    table = {op: function for op, function in known.items() if op not in LOWERINGS}
    flat = lambda *args: _as_tuple(program(*args))  # noqa: E731
    module = make_fx(flat, table, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)
    for node in module.graph.find_nodes(op="get_attr"):  # as our own graphs name what a program writes down
        setattr(module, f"{LITERAL}{node.name}", getattr(module, str(node.target)))
        node.target = f"{LITERAL}{node.name}"
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _exact(program: Callable[..., Any], inputs: Sequence[Any], at: int) -> torch.Tensor:
    """A result in float64."""
    wide = [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
    ]
    return _as_tuple(program(*wide))[at]


def _is_close(ours: torch.Tensor, eagers: torch.Tensor, exact: Callable[[], torch.Tensor]) -> bool:
    """Equal but for rounding; where that shows, not much worse than eager."""
    if not ours.is_floating_point():
        return torch.equal(ours, eagers)
    if torch.allclose(ours, eagers, 1.3e-6, 2e-5, equal_nan=True):
        return True
    true = exact()
    eps = torch.finfo(ours.dtype).eps
    worst = (eagers.double() - true).abs().max() + 4 * eps * true.abs().max()
    return bool((ours.double() - true).abs().max() <= 3 * worst)


def check(
    program: Callable[..., Any],
    make_inputs: Callable[[Any], Sequence[Any]],
    sizes: Sequence[Any] = SIZES,
    first: Any = 12,
    builds: int | None = 1,
    compile_module: Callable[[torch.fx.GraphModule], Callable[..., Any]] | None = None,
) -> None:
    """Compile at size `first`; compare with eager at all sizes; count the libraries.

    compile_module: another compiler of ATen graphs.
    """
    module = capture(program, make_inputs(first))
    before = metrics.snapshot()
    compiled = compile_module(module) if compile_module else compile_aten(module, [])
    for size in (first, *sizes):
        inputs = make_inputs(size)
        with torch.no_grad():
            wanted = _as_tuple(program(*inputs))
            found = compiled(*inputs)
        assert len(found) == len(wanted)
        for at, (ours, eagers) in enumerate(zip(found, wanted, strict=True)):
            if not isinstance(eagers, torch.Tensor):
                assert ours == eagers, f"size {size}"
                continue
            assert ours.shape == eagers.shape and ours.dtype == eagers.dtype, f"size {size}"
            exact = functools.partial(_exact, program, inputs, at)
            assert _is_close(ours, eagers, exact), f"size {size}"
    after = metrics.snapshot()
    libraries = [after[name] - before[name] for name in ("libraries_built", "libraries_reused")]
    assert builds is None or sum(libraries) == builds
