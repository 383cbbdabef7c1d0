"""Recurrent layers over symbolic sizes, packed sequences, or on a GPU, as one operation.

In: the arguments of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` as fakes. Out:
fakes of the results. torch's Python versions take a step for each place of the sequence, and so
make a constant of its length; its kernels on a GPU look for the weights in one buffer, which fakes
have not. Here nothing is computed: the graph holds the call, which a backend runs as eager does
(`dynamo/graph_operators/cuts.py`), with the device's own kernels. Which dtypes autocast gives to
the results depends on the kernel: one step over zeros tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dynamo.graph_operators.cuts import RECURRENT, is_whole

Size = tuple[Any, ...]


class _Layers(torch.autograd.Function):
    """Contiguous tensors of these sizes and dtypes, which autograd derives from the given ones."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sequence[Size], dtypes: Sequence[torch.dtype], *tensors: torch.Tensor
    ) -> Any:
        ctx.save_for_backward(*tensors)
        pairs = zip(sizes, dtypes, strict=True)
        return tuple([tensors[0].new_empty(size, dtype=dtype) for size, dtype in pairs])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *map(torch.empty_like, ctx.saved_tensors)


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


    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.data, *self.states, *self.weights]


def _call_of(args: tuple[Any, ...]) -> _Call | None:
    """None for what the layers of `torch.nn` don't write."""
    if len(args) != 9 or not isinstance(args[0], torch.Tensor):
        return None
    is_packed = isinstance(args[3], (list, tuple))
    given = (*args, False) if is_packed else (args[0], None, *args[1:])
    call = _Call(*given)
    if isinstance(call.states, torch.Tensor):
        call = call._replace(states=[call.states])
    device = call.data.device
    plain = all(isinstance(t, torch.Tensor) and t.device == device for t in call.tensors)
    return call if plain and type(call.layers) is int and call.layers > 0 else None


def _fits(call: _Call) -> bool:
    """Whether the sizes go together; where they don't, torch raises."""
    data, rows = call.data, call.layers * (2 if call.bidirectional else 1)
    if data.dim() != (2 if call.batch_sizes is not None else 3) or len(call.weights) < 2:
        return False
    if len(call.weights) % rows or data.shape[-1] != call.weights[0].shape[-1]:
        return False
    if any(state.dim() != 3 or state.shape[0] != rows for state in call.states):
        return False
    if call.states[0].shape[2] != call.weights[1].shape[-1]:
        return False
    if any(type(size) is int and size == 0 for size in (*data.shape, *call.states[-1].shape)):
        return False
    if call.batch_sizes is not None:
        return True
    batch = data.shape[0 if call.batch_first else 1]
    return all(state.shape[1] == batch for state in call.states)


def _in_one(function: Any, states: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        """The function; what is taken apart, and what it refuses, is left to it."""
        call = None if kwargs else _call_of(args)
        if call is None or not is_whole(args):
            return function(*args, **kwargs)
        dtypes = _dtypes(function, call) if len(call.states) == states and _fits(call) else None
        if dtypes is None:
            return function(*args, **kwargs)
        width = call.states[0].shape[2] * (2 if call.bidirectional else 1)
        swapped = call.data.transpose(0, 1) if call.batch_first else call.data
        sizes = [(*swapped.shape[:-1], width), *(tuple(state.shape) for state in call.states)]
        result, *last = _Layers.apply(sizes, dtypes, *call.tensors)
        return (result.transpose(0, 1) if call.batch_first else result, *last)

    return run


def _dtypes(function: Any, call: _Call) -> Sequence[torch.dtype] | None:
    """Of the results; None where the function refuses the arguments'."""
    given = {tensor.dtype for tensor in call.tensors}
    if not torch.is_autocast_enabled(call.data.device.type):
        return [call.data.dtype] * (1 + len(call.states)) if len(given) == 1 else None
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
            return [tensor.dtype for tensor in function(*_one_step(call))]
    except RuntimeError:
        return None
    finally:
        torch.set_autocast_cache_enabled(cached)


def _one_step(call: _Call) -> tuple[Any, ...]:
    """Arguments like these, of zeros, for a batch of one sequence of one place."""

    def zeros(tensor: torch.Tensor, *size: int) -> torch.Tensor:
        made = torch.zeros(tuple(map(int, size)), dtype=tensor.dtype, device=tensor.device)
        return made.requires_grad_(tensor.requires_grad)

    states: Any = [zeros(state, state.shape[0], 1, state.shape[2]) for state in call.states]
    states = states if len(states) > 1 else states[0]
    weights = [zeros(weight, *weight.shape) for weight in call.weights]
    options = (weights, call.has_biases, call.layers, 0.0, call.train, call.bidirectional)
    width = call.data.shape[-1]
    if call.batch_sizes is not None:
        return zeros(call.data, 1, width), torch.ones(1, dtype=torch.int64), states, *options
    return zeros(call.data, 1, 1, width), states, *options, call.batch_first


STEPS: Mapping[Any, Callable[..., Any]] = {
    function: _in_one(function, 2 if function == torch.lstm else 1) for function in RECURRENT
}
