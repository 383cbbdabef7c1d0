"""Counters for attention of few queries, so that its last programs join what the others have found.

In: a functional ATen graph of known sizes, with fakes. Out: the same graph (changed in place), in
which those calls of `dynamo_jit::attention` whose programs share the keys have zeros to count by.
Else a second kernel joins their results, which is a launch for each layer of a decoder. The zeros
of all calls are one launch.

A program waits longer for the others than a launch takes where they are many, or where few programs
run. us of a call on an H200, 32 heads of 128, 8 of keys, two kernels and one: 512 keys (4 programs
share them) of one sequence 5.9 and 6.0, of eight sequences 11.1 and 10.0; of one sequence 2048 keys
8.7 and 10.7, 8192 keys 15.4 and 20.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.calls_with_fakes import Calls
from inductor.kernels.attention_spec import few_of, spec_of
from inductor.operators.attention_ops import FEW_QUERIES

ATTENTION = torch.ops.dynamo_jit.attention.default
ARGUMENTS = 11  # in front of the counters
FEWEST_CALLS = 3  # chosen, not measured: the zeros are a launch, too
MOST_SPLITS, FEWEST_HEADS = 4, 64  # of keys, of all sequences; see the top of the file
ALIGNED = 32  # counters of a call begin at 128 bytes: compiled kernels expect 16


def count_programs(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    calls = module.graph.find_nodes(op="call_function", target=ATTENTION)
    calls = [call for call in calls if _shares_keys(call)]
    if len(calls) < FEWEST_CALLS or len({call.meta["val"][0].device for call in calls}) > 1:
        return module
    each = [-(-_heads_of_keys(call) // ALIGNED) * ALIGNED for call in calls]
    first = Calls(calls[0])
    zeros = first(torch.ops.dynamo_jit.zero_counters.default, calls[0].args[0], sum(each))
    begin = 0
    for call, count in zip(calls, each, strict=True):
        end = begin + count
        own = Calls(call)(torch.ops.aten.slice.Tensor, zeros, 0, begin, end)
        call.args, begin = (*call.args[:ARGUMENTS], own), end
    module.recompile()
    return module


def _heads_of_keys(call: fx.Node) -> int:
    """Of all sequences."""
    return math.prod(_fake(call.args[1]).shape[:2])


def _shares_keys(call: fx.Node) -> bool:
    """Whether a kernel of few queries computes it, as far as metadata says, and would gain."""
    if call.kwargs or any(given is not None for given in call.args[ARGUMENTS:]):
        return False
    q, k, v, bias, mask = (_fake(one) for one in call.args[:5])
    if not on_gpu(q.device) or q.shape[2] > FEW_QUERIES:
        return False
    causal, scale, window, cap, nan_rows, lse = call.args[5:ARGUMENTS]
    spec = spec_of(
        q, k, v, bias, mask, causal=bool(causal), scale=scale, window=window, cap=cap,  # type: ignore
        nan_rows=bool(nan_rows), lse=bool(lse))
    few = few_of(spec)
    return few is not None and few.splits <= MOST_SPLITS and _heads_of_keys(call) >= FEWEST_HEADS


def on_gpu(device: torch.device) -> bool:
    """Whether it is one of NVIDIA's: there a barrier puts the stores of all threads before what one
    of them counts. Of AMD's that is not known."""
    return device.type == "cuda" and torch.version.hip is None


def _fake(given: Any) -> Any:
    return None if given is None else given.meta["val"]
