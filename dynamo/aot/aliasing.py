"""What outputs and inputs share: from a reference run to the records of the alias model.

The model itself is described in `records`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.overlap import overlap, overlaps_itself
from dynamo.aot.records import (
    ConstantOutput,
    FreshOutput,
    InputOutput,
    Output,
    PlainOutput,
    Unsupported,
    ViewOutput,
)
from dynamo.aot.reference import Reference
from dynamo.shapes.facts import Facts
from dynamo.shapes.fake import Fake


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the program's outputs come about.

    outputs: records whose `FreshOutput.index` counts the graph's outputs.
    values: for each of the graph's outputs, the flat position of the program output that has its
        value, and whether it is not that value but the base that it is a view of.
    """

    outputs: tuple[Output, ...]
    values: tuple[tuple[int, bool], ...]


class _Planner:
    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.objects: dict[int, Output] = {}
        self.bases: dict[int, tuple[Output, Fake]] = {}
        self.values: list[tuple[int, bool]] = []
        for index, fake in enumerate(reference.inputs):
            if type(fake) is Fake:
                self.objects.setdefault(id(fake), InputOutput(index))
                self.bases.setdefault(fake.storage_key, (InputOutput(index), fake))
        for fake, real in reference.constants:
            self.objects[id(fake)] = ConstantOutput(real)
            self.bases[fake.storage_key] = (ConstantOutput(real), fake)
        different = {id(out): out for out in reference.outputs if type(out) is Fake}
        self.sharing = Counter(fake.storage_key for fake in different.values())

    def plan(self, position: int, out: Any) -> Output:
        if type(out) is not Fake:
            if isinstance(out, torch.Tensor):
                raise Unsupported("an output is a tensor from outside of the graph")
            return PlainOutput(out)
        known = self.objects.get(id(out))
        if known is not None:
            return known
        base = self._base_of(out)
        record: Output
        if base is not None:
            record = _view(out, *base)
        elif self.sharing[out.storage_key] == 1 or _owns_storage(out):
            record = self._fresh(position, False)
            self.bases[out.storage_key] = (record, out)
        else:
            hidden = self._fresh(position, True)
            root = out._base
            if type(root) is not Fake or not _owns_storage(root):
                raise Unsupported("outputs share a storage that none of them is a view of")
            self.bases[out.storage_key] = (hidden, root)
            record = _view(out, hidden, root)
        self.objects[id(out)] = record
        return record

    def _base_of(self, out: Fake) -> tuple[Output, Fake] | None:
        """What `out` is made from at run time: the very base where several inputs share memory."""
        root = out._base
        if type(root) is Fake and isinstance(self.objects.get(id(root)), InputOutput):
            return self.objects[id(root)], root
        return self.bases.get(out.storage_key)

    def _fresh(self, position: int, is_base: bool) -> FreshOutput:
        self.values.append((position, is_base))
        return FreshOutput(len(self.values) - 1)


def _owns_storage(fake: Fake) -> bool:
    return not fake._is_view() and fake.facts.offset == 0 and fake.token.nbytes == fake.facts.nbytes


def _view(out: Fake, record: Output, base: Fake) -> ViewOutput:
    facts = out.facts
    if facts.dtype != base.facts.dtype or facts.bits != base.facts.bits:
        raise Unsupported("an output views its base as another dtype")
    if not out._is_view():
        detach = "after"
    else:
        detach = "" if out._base is base else "before"
    assert isinstance(record, (FreshOutput, InputOutput, ConstantOutput))
    return ViewOutput(record, facts.size, facts.stride, facts.offset, detach)


def plan_outputs(reference: Reference) -> OutputPlan:
    """Classifies the program's outputs. Owners of a storage come first, so that views find them."""
    planner = _Planner(reference)
    outputs: list[Output | None] = [None] * len(reference.outputs)
    order = sorted(
        range(len(outputs)),
        key=lambda at: type(reference.outputs[at]) is Fake
        and not _owns_storage(reference.outputs[at]),
    )
    for position in order:
        outputs[position] = planner.plan(position, reference.outputs[position])
    return OutputPlan(tuple(outputs), tuple(planner.values))  # type: ignore[arg-type]


def check_views(reference: Reference, plan: OutputPlan) -> None:
    """Raises Unsupported where a view made again at run time would not require grad as eager's."""
    grad = torch.is_grad_enabled()
    for record, out in zip(plan.outputs, reference.outputs, strict=True):
        if isinstance(record, ViewOutput):
            base = out._base if not record.detach else None
            expected = grad and base is not None and base.requires_grad
            if out.requires_grad != expected:
                raise Unsupported("an output is a view made in another grad mode")


def check_mutations(reference: Reference, mutated: list[int]) -> None:
    """Raises Unsupported where a mutated input shares memory with another one, or with itself."""
    groups: dict[int, list[tuple[int, Facts]]] = {}
    for index, fake in enumerate(reference.inputs):
        if type(fake) is Fake:
            groups.setdefault(fake.storage_key, []).append((index, fake.facts))
    for index in mutated:
        fake = reference.inputs[index]
        if overlaps_itself(fake.facts):
            raise Unsupported("a mutated input names elements twice")
        for other, facts in groups[fake.storage_key]:
            if other != index and overlap(fake.facts, facts):
                raise Unsupported("a mutated input shares memory with another input")
    for fake, _ in reference.constants:
        if any(reference.inputs[index].storage_key == fake.storage_key for index in mutated):
            raise Unsupported("a mutated input shares memory with a constant")
