"""A scheduler that makes mistakes: no kernel is generated that reads what nothing has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config
from dynamo.base.errors import VerifyError
from inductor.ir.body import LoopBody, Op
from inductor.scheduler import assemble, fuse, run, split
from inductor.scheduler.schedule import Kernel

Patch = pytest.MonkeyPatch


def no_forwarding(patch: Patch) -> None:
    """Each value is loaded, also where its store is dropped."""
    patch.setattr(assemble._Writer, "_load", lambda self, op: self._append(op))


def no_places(patch: Patch) -> None:
    """What later stages read is neither a local nor in memory."""
    patch.setattr(assemble._Assembler, "_choose_places", lambda self: None)


def nothing_needed(patch: Patch) -> None:
    patch.setattr(run, "_needed", lambda *args: frozenset())


def lost_part(patch: Patch) -> None:
    """A loop that is cut in two runs only its first part."""
    whole = split.split_stage
    patch.setattr(split, "split_stage", lambda stage: whole(stage)[:1])


def any_row(patch: Patch) -> None:
    """Readers join their producer's kernel wherever they read."""
    patch.setattr(fuse._Fuser, "_in_row", lambda *args: True)


def other_order(patch: Patch) -> None:
    backwards = fuse._Fuser._ordered
    patch.setattr(fuse._Fuser, "_ordered", lambda self: backwards(self)[::-1])


def other_place(patch: Patch) -> None:
    """Locals of a row are read elsewhere than they were written."""
    load = assemble._Writer._load

    def moved(self: Any, op: Op) -> int:
        at = load(self, op)
        found = self.ops[at]
        local = self.kernel.locals.get(found.buffer)
        if found.name == "load" and local is not None and local.elements != 1:
            self.ops[at] = replace(found, index=found.index * 0)
        return at

    patch.setattr(assemble._Writer, "_load", moved)


def written_too_early(patch: Patch) -> None:
    """An input is overwritten in the order in which others are read."""
    make = run.split_kernel

    def shifted(kernel: Kernel) -> Kernel:
        stages = tuple(
            LoopBody(s.ranges, s.reduction_ranges, tuple(
                replace(op, index=op.index + 1) if op.name == "load" and op.buffer == "arg0" else op
                for op in s.ops
            )) for s in make(kernel).stages
        )  # fmt: skip
        return replace(kernel, stages=stages)

    patch.setattr(run, "split_kernel", shifted)


def soft_sign(x: torch.Tensor) -> torch.Tensor:
    t = torch.tanh(x)
    return t / (1 + t.abs())


def mirrored(x: torch.Tensor) -> torch.Tensor:
    t = x.softmax(-1)
    return t * t.flip(0).sum(-1, keepdim=True)


SABOTAGE: list[tuple[Callable[[Patch], None], Callable[[torch.Tensor], Any], str]] = [
    (no_forwarding, soft_sign, "nothing has written"),
    (no_places, lambda x: x - x.mean(-1, keepdim=True), "nothing has written"),
    (nothing_needed, lambda x: (x.exp(), x @ x.exp()), "of which 0 elements are written"),
    (lost_part, lambda x: torch.cat([x[:, :5], x[:, 5:] * 2], 1).exp() @ x, "elements are written"),
    (any_row, mirrored, "its own row"),
    (other_order, lambda x: x.exp() @ x, "of which 0 elements are written"),
    (other_place, lambda x: x.softmax(-1), "its own place"),
    (written_too_early, lambda x: x.mul_(2), "another iteration overwrites"),
]  # fmt: skip


@pytest.mark.parametrize(("sabotage", "program", "what"), SABOTAGE, ids=[r[0].__name__ for r in SABOTAGE])
def test_a_mistake_is_an_error(
    sabotage: Callable[[Patch], None], program: Callable[[torch.Tensor], Any], what: str, monkeypatch: Patch
) -> None:
    sabotage(monkeypatch)
    with config.patch(suppress_errors=False), pytest.raises(VerifyError, match=what):
        dynamo.compile(program)(torch.randn(16, 16))


def test_a_mistake_is_one_warning_and_runs_in_eager(monkeypatch: Patch) -> None:
    no_forwarding(monkeypatch)
    x = torch.randn(16, 16)
    compiled = dynamo.compile(soft_sign)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="VerifyError") as caught:
        for _ in range(3):
            assert torch.equal(compiled(x), soft_sign(x))
    assert len(caught) == 1


def test_for_all_sizes_a_mistake_runs_in_eager(monkeypatch: Patch) -> None:
    no_forwarding(monkeypatch)
    compiled = dynamo.compile(soft_sign, dynamic=True)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="VerifyError"):
        for size in (4, 9, 16):
            x = torch.randn(size)
            assert torch.equal(compiled(x), soft_sign(x))
