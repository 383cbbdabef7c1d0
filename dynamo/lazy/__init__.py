"""Lazy tensors: operations are recorded and run as compiled graphs when somebody looks at a value.

The second way to capture a program, for what bytecode can't tell: loops in C++, generated code,
notebooks. It sees tensor operations only, so that any host program works (LazyTensor paper).

    >>> import torch
    >>> with mode(backend="eager"):
    ...     x = torch.ones(2, 2) + 1
    ...     y = x @ x
    ...     mark_step()
    >>> y.sum().item()
    32.0

`docs/lazy.md` explains it to users. The parts, in the order in which data flows: `tensor` (the
class that programs hold), `record` (a call becomes a step), `rules` (what each operator does to
metadata), `trace`, `recorder` (what ends a trace), `program` (the table of compiled traces),
`graph`.
"""

from dynamo.lazy.mode import (
    eager,
    explain,
    is_lazy,
    mark_step,
    metrics,
    mode,
    reset,
    tensor,
)
from dynamo.lazy.report import End, Metrics
from dynamo.lazy.tensor import LazyTensor
from dynamo.lazy.values import LazyError

__all__ = [
    "End", "LazyError", "LazyTensor", "Metrics", "eager", "explain", "is_lazy", "mark_step",
    "metrics", "mode", "reset", "tensor",
]
