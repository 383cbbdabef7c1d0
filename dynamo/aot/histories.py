"""Autograd's graph above a recorded program, which is as eager builds it.

In: results of the recorded program. Out: the nodes behind them, the inputs that they lead to, and
what arrives at a node while backward is recorded.

    >>> x = torch.ones(3, requires_grad=True)
    >>> [node.name() for node in nodes_behind([x.sin()])]
    ['SinBackward0', 'torch::autograd::AccumulateGrad']
    >>> inputs_behind(x.sin(), {5: x})
    frozenset({5})
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from dynamo.aot.functional_tensors import inner_of
from dynamo.aot.recorder import Recorder

_is_functional: Any = torch._is_functional_tensor  # type: ignore[attr-defined]


def nodes_behind(results: Iterable[Any], until: Iterable[Any] = ()) -> Iterator[Any]:
    """The nodes that these results come from, each once. until: tensors whose nodes, and what lies
    behind these, are left out."""
    work = [value.grad_fn for value in results if isinstance(value, torch.Tensor)]
    seen: set[Any] = {value.grad_fn for value in until}
    while work:
        node = work.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        work += [before for before, _ in node.next_functions]


def inputs_behind(result: torch.Tensor, leaves: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """The inputs that a backward of this result comes to, with a gradient or without one. leaves:
    the tensors that stand for them."""
    places = {id(leaf): index for index, leaf in leaves.items()}
    found = [places.get(id(getattr(node, "variable", None))) for node in nodes_behind([result])]
    return frozenset([index for index in found if index is not None])


@contextlib.contextmanager
def noting_arrivals(recorder: Recorder, results: Iterable[Any]) -> Iterator[None]:
    """Inside, the recorder knows the gradients that have come to the node which runs."""
    handles = [node.register_prehook(functools.partial(_note, recorder))
               for node in nodes_behind(results)]  # fmt: skip
    try:
        yield
    finally:
        recorder.arrived = ()
        for handle in handles:
            handle.remove()


def _note(recorder: Recorder, grads: tuple[Any, ...]) -> None:
    given = tuple([grad for grad in grads if grad is not None])
    plain = all(_is_functional(inner_of(grad)) for grad in given)
    recorder.arrived = given if plain else ()  # not for a gradient that is a wrapper
