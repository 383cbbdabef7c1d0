"""Each operator that is lowered: torch's own samples in one graph, against eager and float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from inductor.driver.compile_fx import compile_fx
from inductor.lowering.registry import LOWERINGS
from tests.gpu.samples import Sample, copied, samples_of
from tests.gpu.support import DEVICE, DTYPES, assert_near, left_uncompiled

# Lowered operators that no program calls by itself, or that other tests reach.
WITHOUT_SAMPLES = frozenset((
    "prims.convert_element_type.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default", "aten.detach.default",
    "aten.cudnn_batch_norm.default", "aten._native_batch_norm_legit_no_training.default", "aten._reshape_alias.default",
    "dynamo_jit.factor.default", "dynamo_jit.dropout_mask.default",
))  # fmt: skip
OPERATORS = sorted({str(target): target for target in LOWERINGS}.items())


def moved(value: Any, dtype: torch.dtype) -> Any:
    """To the device; floats to this dtype."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.device):
            return torch.device(DEVICE)
        if item is torch.float32:
            return dtype
        if isinstance(item, torch.Tensor):
            return item.to(DEVICE, dtype if item.dtype == torch.float32 else item.dtype)
        return item

    leaves, spec = tree_flatten(value)
    return tree_unflatten([move(leaf) for leaf in leaves], spec)


def graph_of(target: Any, samples: list[Sample]) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """One graph that calls the operator with each sample; its inputs."""
    graph = torch.fx.Graph()
    inputs: list[torch.Tensor] = []
    results = []
    leaves, spec = tree_flatten(samples)
    nodes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            inputs.append(leaf)
            leaf = graph.placeholder(f"x{len(inputs)}")
        nodes.append(leaf)
    for args, kwargs in tree_unflatten(nodes, spec):
        given = [graph.call_function(torch.clone, (args[0],)), *args[1:]] if target._schema.is_mutable else args
        results.append(graph.call_function(target, tuple(given), kwargs))
    graph.output(tuple(results))
    return torch.fx.GraphModule({}, graph), inputs


def is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def runs(target: Any, sample: Sample) -> bool:
    """Whether eager has it in this dtype, the same twice, with sizes that do not depend on data."""
    if target._overloadname == "Tensor" and any(is_mask(x) for x in tree_leaves(sample[0][1:])):
        if "index" in target._schema.name:
            return False
    if target is torch.ops.aten.native_batch_norm.default and sample[0][3] is None and sample[0][0].dtype != torch.float32:
        return False  # of a batch alone, in half precision: runs as captured, and is counted
    (args, kwargs), (again, named) = copied(sample), copied(sample)
    try:
        first, second = target(*args, **kwargs), target(*again, **named)
    except (RuntimeError, NotImplementedError):
        return False
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(not isinstance(a, torch.Tensor) or torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def test_nearly_all_have_samples() -> None:
    without = {name for name, target in OPERATORS if not samples_of(target)} - WITHOUT_SAMPLES
    assert len(without) < len(OPERATORS) // 20, without


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", [name for name, _ in OPERATORS])
def test_against_eager(name: str, dtype: torch.dtype) -> None:
    target = dict(OPERATORS)[name]
    samples = [sample for sample in (moved(sample, dtype) for sample in samples_of(target)) if runs(target, sample)]
    if not samples:
        pytest.skip("eager has no sample of it in this dtype")
    module, inputs = graph_of(target, samples)
    with torch.no_grad():
        found = compile_fx(module, inputs)(*inputs)
        wanted = [target(*args, **kwargs) for args, kwargs in copied(samples)]
        exact = [exact_of(target, sample) for sample in samples]
    for n, (one, other, best) in enumerate(zip(found, wanted, exact, strict=True)):
        if name == "aten.native_batch_norm.default" and not samples[n][0][5]:  # its statistics are nobody's
            one, other, best = one[0], other[0], best[0]
        if "empty" in name:  # the values are whatever the memory holds
            assert (one.dtype, one.shape, one.stride(), one.device) == (other.dtype, other.shape, other.stride(), other.device)
            continue
        try:
            assert_near(one, other, other if best is None else best)
        except AssertionError as error:
            raise AssertionError(f"sample {n} of {samples[n]!s:.600}") from error
    assert not left_uncompiled(), left_uncompiled()


def exact_of(target: Any, sample: Sample) -> Any:
    try:
        args, kwargs = sample
        leaves, spec = tree_flatten(copied((args, kwargs)))
        leaves = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in leaves]
        leaves = [torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x for x in leaves]
        given, named = tree_unflatten(leaves, spec)
        return target(*given, **named)
    except (RuntimeError, NotImplementedError):
        return None
