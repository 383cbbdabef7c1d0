"""What may be recorded as a CUDA graph.

In: a loop graph and its schedule. Out: why it must not be recorded (`refusal`), and which inputs a
recording writes (`written_inputs`), whose addresses have to stay.

Allowed is what does the same each time its launches run again: no operator that waits for the
device or reads its memory on the host. Random numbers may be drawn by ATen's own operators, and
states of the generator for our kernels: PyTorch moves their seed and offset from replay to replay.
Operators of libraries and the program's Triton kernels are recorded, unless they carry torch's tag
`cudagraph_unsafe` or are registered as having effects; one that waits for the device fails while it
is recorded, and its graph runs without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynamo.graph_operators.operator_effects import draws, freedom_of, is_check, is_registered
from dynamo.graph_operators.written_operators import operator_of
from inductor.ir.graph import ComputedBuffer, ExternKernel, LoopGraph, MultiOutput, ViewRef
from inductor.operators.device_numbers import ADD_TO_NUMBERS, COMPUTE_NUMBERS, NUMBERS_ON
from inductor.scheduler.schedule import Schedule

FEWEST_STEPS = 3  # a graph costs as much as so many launches
UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
WAITS = (
    "nonzero", "item", "_local_scalar_dense", "unique", "masked_select", "bincount",
    "repeat_interleave", "histc", "linalg_", "_linalg_", "_embedding_bag", "equal",
)  # beginnings of names of operators that may wait for the device
WAIT_FOR_MASKS = ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
RANDOM = frozenset({
    "native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "randint",
    "randint_like", "uniform", "normal_functional", "exponential", "geometric",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "philox_state",
})  # fmt: skip  # whose kernels read seed and offset from the device while they are recorded
OF_THE_HOST = frozenset((NUMBERS_ON, ADD_TO_NUMBERS, COMPUTE_NUMBERS))
WAITING_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def refusal(graph: LoopGraph, schedule: Schedule, slow: Sequence[str]) -> str:
    """Why a schedule is not recorded; empty if it may be. slow: kernels that run as ATen."""
    if graph.device.type != "cuda":
        return f"no CUDA graphs on {graph.device}"
    tensors = [b for b in (*graph.inputs, *graph.constants) if b is not None]
    if any(buffer.layout.device != graph.device for buffer in tensors):
        return "an input is on another device"
    if slow:
        return f"{slow[0]} runs as ATen operators"
    for step in schedule.steps:
        if isinstance(step, ExternKernel):
            if step.layout is not None and step.layout.device != graph.device:
                return "a result is on another device"
            why = _extern_refusal(step)
            if why:
                return why
    if sum(not isinstance(step, MultiOutput) for step in schedule.steps) < FEWEST_STEPS:
        return "too few launches"
    return ""


def written_inputs(graph: LoopGraph, schedule: Schedule) -> frozenset[int]:
    """Positions, among the inputs that are tensors, of those that the graph writes."""
    names = {node.mutates for node in graph.nodes if isinstance(node, ComputedBuffer)}
    for step in (*graph.nodes, *schedule.steps):
        if isinstance(step, ExternKernel):
            names.update(step.mutates)
    tensors = [buffer.name for buffer in graph.inputs if buffer is not None]
    return frozenset(n for n, name in enumerate(tensors) if name in names)


def is_reread(schedule: Schedule) -> bool:
    """Whether one more run of the schedule would be seen: in the random numbers that follow, or in
    what an operator of a library does."""
    externs = (step for step in schedule.steps if isinstance(step, ExternKernel))
    return any(not freedom_of(step.target).move for step in externs)


def _extern_refusal(step: ExternKernel) -> str:
    target = step.target
    name = target._schema.name.split("::")[1]
    if UNSAFE is not None and UNSAFE in (operator_of(target) or target).tags:
        return f"{target} says that it must not be recorded"
    if is_registered(target) and not is_check(target):
        return f"{target} is registered as having effects, which a replay would leave out"
    if draws(target) and _argument(step, "dropout_p") != 0:
        if name not in RANDOM or _argument(step, "generator") is not None:
            return f"{target} draws random numbers"
    if target in OF_THE_HOST:
        return f"{target} reads memory of the host, which a replay would not see change"
    if any(tag in target.tags for tag in WAITING_TAGS):
        return f"{target} waits for the device"
    if name.startswith(WAITS):
        return f"{target} may wait for the device"
    if name in WAIT_FOR_MASKS and _has_mask(step):
        return f"{target} waits for the device"
    return ""


def _has_mask(step: ExternKernel) -> bool:
    """Whether an index is a mask, of which the host wants to know the length."""
    indices = _argument(step, "indices") or ()
    found = [index.dtype for index in indices if isinstance(index, ViewRef)]
    return any(dtype in (torch.bool, torch.uint8) for dtype in found)


def _argument(step: ExternKernel, name: str) -> Any:
    """The value of an argument of a call; None if there is no such."""
    for position, argument in enumerate(step.target._schema.arguments):
        if argument.name == name:
            if position < len(step.args):
                return step.args[position]
            return dict(step.kwargs).get(name, argument.default_value)
    return None
