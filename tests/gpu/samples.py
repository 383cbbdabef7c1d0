"""Arguments for ATen operators: what torch's own samples of its operators come to."""

from __future__ import annotations

import functools
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Sample = tuple[tuple[Any, ...], dict[str, Any]]
REFUSED = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)
MOST = 8  # samples of one operator
TRIED = 40  # samples of torch's

# Operators that are reached through others only: part of ATen -> names in torch's database.
REACHED_BY = {
    "log_sigmoid_forward": "logsigmoid", "_prelu_kernel": "prelu", "sigmoid_backward": "sigmoid", "tanh_backward": "tanh",
    "threshold_backward": "relu", "clip": "clamp", "_to_copy": "to", "zero": "zero_", "index": "__getitem__",
    "_unsafe_index": "interpolate", "index_put_": "index_put", "copy": "add", "max_pool2d_with_indices": "max_pool2d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "_native_batch_norm_legit_no_training": "batch_norm", "native_group_norm": "group_norm", "index_add_": "index_add",
    "index_copy_": "index_copy", "scatter_add_": "scatter_add", "scatter_": "scatter", "_unsafe_view": "matmul",
    "_reshape_alias": "reshape", "alias": "alias_copy", "detach": "detach_copy", "gelu_backward": "gelu",
    "max_pool3d_with_indices": "max_pool3d", "max_pool3d_with_indices_backward": "max_pool3d",
    "max_pool2d_with_indices_backward": "max_pool2d", "_adaptive_avg_pool3d": "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d", "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d",
    "avg_pool2d_backward": "avg_pool2d", "avg_pool3d_backward": "avg_pool3d", "col2im": "fold",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Keeps the arguments of all calls of the operators of one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.calls: dict[Any, list[Sample]] = {}
        self.given: list[Sample] = []  # to the entries of the database

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] == self.name:
            self.calls.setdefault(func, []).append(copied((args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def copied(value: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, value)


@functools.cache
def database() -> dict[str, list[Any]]:
    """torch's operators by name."""
    # The database imports this for torch's own tests.
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, list[Any]] = {}
    for entry in op_db:
        for name in {entry.name, entry.name.rpartition(".")[2], entry.aten_name, entry.name.replace(".", "_")}:
            found.setdefault(name, []).append(entry)
    return found


@functools.cache
def calls_of(name: str) -> Watch:
    """All calls of `aten.<name>` that torch's samples make on the CPU."""
    watch = Watch(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entries = [database().get(key, []) for key in (name, name.rstrip("_"), REACHED_BY.get(name, ""))]
        for entry in {id(entry): entry for entry in itertools.chain(*entries)}.values():
            for dtype in (torch.float32, torch.int64, torch.bool):
                if dtype in entry.supported_dtypes("cpu"):
                    try_out(watch, entry, dtype)
    return watch


def try_out(watch: Watch, entry: Any, dtype: torch.dtype) -> None:
    grad = entry.supports_autograd and dtype.is_floating_point
    for sample in itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=grad), TRIED):
        watch.given.append(copied(((sample.input, *sample.args), sample.kwargs)))
        try:
            with watch:
                found = entry(sample.input, *sample.args, **sample.kwargs)
                leaves = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.requires_grad]
                if leaves:
                    torch.stack([x.abs().sum().double() for x in leaves]).sum().backward()
        except REFUSED:
            continue  # eager's own


def kinds(value: Any) -> Any:
    """What tells two samples apart."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.is_contiguous(), value.numel() == 0
    if isinstance(value, (list, tuple)):
        return tuple(map(kinds, value))
    return repr(value)


def by_hand() -> dict[str, list[Sample]]:
    """Samples of operators to which none of torch's come."""
    x, where, index = torch.randn(4, 5), torch.rand(4, 5) > 0.5, torch.tensor([2, 0, 3])
    bounds = [((x, -0.5, 0.5), {}), ((x, None, 0.3), {}), ((x.t(), 0.1), {})]
    return {
        "aten.pow.Scalar": [((2.0, x), {})],
        "aten.where.ScalarOther": [((where, x, 0.5), {})],
        "aten.where.Scalar": [((where, 0.5, 1.5), {})],
        "aten.clamp.default": bounds,
        "aten.clip.default": bounds,
        "aten.clamp_min.default": [((x, 0.1), {})],
        "aten.clamp_max.default": [((x, 0.1), {})],
        "aten.fill.Tensor": [((x, torch.tensor(3.0)), {})],
        "aten._unsafe_index.Tensor": [((x, [index, None]), {}), ((x, [None, index]), {})],
        "aten._unsafe_index_put.default": [((x, [index], torch.randn(3, 5), True), {})],
        "aten.view.dtype": [((torch.arange(6, dtype=torch.int32), torch.int32), {})],
    }


def candidates(target: Any) -> Iterator[Sample]:
    """Calls of the operator itself; where there are none, those of its other overloads that may do."""
    yield from by_hand().get(str(target), ())
    watch = calls_of(target._schema.name.partition("::")[2])
    yield from watch.calls.get(target, ())
    if target in watch.calls:
        return
    for others in (*watch.calls.values(), watch.given):
        for args, kwargs in [*others, *((args[:2], {}) for args, _ in others)]:
            if target._overloadname.startswith(("Scalar", "Tensor_Scalar")) and len(args) > 1:
                args = (args[0], 2, *args[2:])
            yield args, {key: value for key, value in kwargs.items() if key != "out"}


def samples_of(target: Any) -> list[Sample]:
    """Some samples of one ATen operator on the CPU, in float32 or integers, that run in eager."""
    found: dict[Any, Sample] = {}
    for args, kwargs in candidates(target):
        key = kinds([*args, *kwargs.items()])
        if key in found:
            continue
        try:
            given, named = copied((args, kwargs))
            target(*given, **named)
        except REFUSED:
            continue
        found[key] = args, kwargs
        if len(found) == MOST:
            break
    return list(found.values())
