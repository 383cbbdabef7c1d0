"""Calls of a Triton kernel by the form of the tensors it is called with.

In: tensors and settings. Out: the kernel's results. A kernel is for one size, stride, dtype and
device of each tensor and for one value of each setting: what the first call of such a form prepares
is cached for the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from inductor.runtime._launch import Allocation
from inductor.runtime.triton_binary import current_stream

Prepared = tuple[Callable[..., object], tuple[Allocation, ...]]


@dataclass(slots=True)
class CallsByForm:
    """What calls of each form so far have prepared: a kernel and its results."""

    known: dict[tuple[Hashable, ...], Prepared] = field(default_factory=dict)

    def run(
        self, prepare: Callable[..., Prepared], tensors: tuple[torch.Tensor, ...],
        *settings: Hashable,
    ) -> list[torch.Tensor]:
        """The results for these tensors, all on one device. prepare: what a new form asks, with
        the tensors and the settings."""
        forms = [(x.shape, x.stride(), x.dtype, x.device) for x in tensors]
        key = (*settings, *forms)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = prepare(*tensors, *settings)
        call, allocations = found
        results = [allocate() for allocate in allocations]
        index = tensors[0].device.index
        call(0 if index is None else current_stream(index), *tensors, *results)
        return results
