"""Recurrent layers over open sizes, as one operation.

In: the arguments of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` as fakes. Out:
fakes of the results. torch's Python versions take a step for each place of the sequence, and so
make a constant of its length. Here nothing is computed: the graph holds the call, which a backend
runs as eager does (`dynamo/base/cuts.py`), with the device's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dynamo.base.cuts import RECURRENT

Size = tuple[Any, ...]


class _Layers(torch.autograd.Function):
    """Contiguous tensors of these sizes, which autograd derives from the given ones."""

    @staticmethod
    def forward(ctx: Any, sizes: Sequence[Size], *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        return tuple([tensors[0].new_empty(size) for size in sizes])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *map(torch.empty_like, ctx.saved_tensors)


class _Call(NamedTuple):
    """The arguments by name. batch_sizes: of a packed sequence, whose places lie in one row."""

    data: torch.Tensor
    batch_sizes: torch.Tensor | None
    states: Sequence[torch.Tensor]
    weights: Sequence[torch.Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def _call_of(args: tuple[Any, ...]) -> _Call | None:
    """None for what the layers of `torch.nn` don't write."""
    if len(args) != 9:
        return None
    is_packed = isinstance(args[3], (list, tuple))
    given = (*args, False) if is_packed else (args[0], None, *args[1:])
    call = _Call(*given)
    if isinstance(call.states, torch.Tensor):
        call = call._replace(states=[call.states])
    tensors = [call.data, *call.states, *call.weights]
    plain = all(isinstance(t, torch.Tensor) and t.dtype == call.data.dtype for t in tensors)
    return call if plain and type(call.layers) is int and call.layers > 0 else None


def _fits(call: _Call) -> bool:
    """Whether the sizes go together; where they don't, torch raises."""
    data, rows = call.data, call.layers * (2 if call.bidirectional else 1)
    if data.dim() != (2 if call.batch_sizes is not None else 3) or not call.weights:
        return False
    if len(call.weights) % rows or data.shape[-1] != call.weights[0].shape[-1]:
        return False
    if any(state.dim() != 3 or state.shape[0] != rows for state in call.states):
        return False
    if call.batch_sizes is not None:
        return True
    batch = data.shape[0 if call.batch_first else 1]
    return all(state.shape[1] == batch for state in call.states)


def _in_one(function: Any, states: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        """The function; what has no open sizes, and what it refuses, is left to it."""
        call = None if kwargs else _call_of(args)
        if call is None or len(call.states) != states or not _is_open(call.data) or not _fits(call):
            return function(*args, **kwargs)
        width = call.states[0].shape[2] * (2 if call.bidirectional else 1)
        swapped = call.data.transpose(0, 1) if call.batch_first else call.data
        sizes = [(*swapped.shape[:-1], width), *(tuple(state.shape) for state in call.states)]
        result, *last = _Layers.apply(sizes, call.data, *call.states, *call.weights)
        return (result.transpose(0, 1) if call.batch_first else result, *last)

    return run


def _is_open(data: torch.Tensor) -> bool:
    device = data.device.type
    return not torch.is_autocast_enabled(device) and any(type(n) is not int for n in data.shape)


STEPS: Mapping[Any, Callable[..., Any]] = {
    function: _in_one(function, 2 if function == torch.lstm else 1) for function in RECURRENT
}
