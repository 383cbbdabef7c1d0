"""Where two runs of the same program differ, in words.

Numbers are compared with what rounding allows: the error against a run in double precision may be
a few times eager's own. Everything else (dtypes, sizes, strides, aliases, effects) is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.diagnose.outcome import Outcome, TensorLeaf

WORSE = 4.0  # so many times eager's own error is rounding
# Relative and absolute; where there is no run in double precision, or one that says nothing.
TOLERANCES = {
    torch.float16: (2e-3, 1e-3), torch.bfloat16: (2e-2, 1e-2), torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-9, 1e-9), torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-9, 1e-9),
}
FAR = 1000  # so many times the tolerance: the run in double precision is another computation


@dataclass(frozen=True, slots=True)
class Difference:
    """path: of the value; text: what differs there."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def compare(
    eager: Outcome, other: Outcome, reference: Outcome | None, name: str = "compiled"
) -> tuple[Difference, ...]:
    """All differences of `other` from eager. reference: the same run in double precision."""
    if eager.error is not None or other.error is not None:
        text = _errors(eager.error, other.error, name)
        return (Difference("the call", text),) if text else ()
    wide = reference if reference is not None and reference.error is None else Outcome()
    found = []
    for path in {**eager.leaves, **other.leaves}:
        if path not in eager.leaves or path not in other.leaves:
            where = name if path in other.leaves else "eager"
            found.append(Difference(path, f"is there in {where} only"))
            continue
        text = _leaf(eager.leaves[path], other.leaves[path], wide.leaves.get(path), name)
        found.extend([Difference(path, text)] if text else [])
    text = _errors(eager.gradient_error, other.gradient_error, name)
    if text:
        return (*found, Difference("the backward", text))
    for path in {**eager.gradients, **other.gradients}:
        one, two = eager.gradients.get(path), other.gradients.get(path)
        text = ""
        if (one is None) is not (two is None):
            text = f"is None in {'eager' if one is None else name} only"
        elif one is not None and two is not None:
            text = _facts(one, two, name) or values_differ(
                one, two, wide.gradients.get(path), name)
        found.extend([Difference(path, text)] if text else [])
    return tuple(found)


def _errors(eager: BaseException | None, other: BaseException | None, name: str) -> str:
    if type(eager) is type(other):
        return ""
    return f"eager {_said(eager)}, {name} {_said(other)}"


def _said(error: BaseException | None) -> str:
    if error is None:
        return "raises nothing"
    return f"raises {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _facts(eager: torch.Tensor, other: torch.Tensor, name: str) -> str:
    for what in ("dtype", "shape", "device", "layout"):
        one, two = getattr(eager, what), getattr(other, what)
        if one != two:
            one, two = (tuple(one), tuple(two)) if what == "shape" else (one, two)
            return f"{what} is {one} in eager, {two} in {name}"
    return ""


def _leaf(eager: Any, other: Any, reference: Any, name: str) -> str:
    if not isinstance(eager, TensorLeaf) or not isinstance(other, TensorLeaf):
        if isinstance(eager, TensorLeaf) or isinstance(other, TensorLeaf):
            return "is a tensor in one of them only"
        if type(eager) is type(other) and _equal(eager, other):
            return ""
        return f"is {eager!r} in eager, {other!r} in {name}"
    facts = _facts(eager.value, other.value, name)
    if facts:
        return facts
    wide = reference.value if isinstance(reference, TensorLeaf) else None
    values = values_differ(eager.value, other.value, wide, name)
    if values:
        return values
    if _steps(eager) != _steps(other):
        return f"strides are {eager.stride} in eager, {other.stride} in {name}"
    if eager.requires_grad is not other.requires_grad:
        return f"requires_grad is {eager.requires_grad} in eager, {other.requires_grad} in {name}"
    for what, one, two in (("is the object", eager.same, other.same),
                           ("has the memory of", eager.memory, other.memory)):
        if one != two:
            return f"{what} {one!r} in eager, {two!r} in {name}"
    if eager.memory != eager.same and eager.offset != other.offset:
        return f"begins at place {eager.offset} of its memory in eager, {other.offset} in {name}"
    return ""


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, float) and math.isclose(one, two, rel_tol=1e-5, abs_tol=1e-8):
        return True
    return bool(one == two) or one != one and two != two


def _steps(leaf: TensorLeaf) -> list[int]:
    """Strides that mean anything."""
    if not leaf.value.numel():
        return []
    return [step for step, size in zip(leaf.stride, leaf.value.shape, strict=False) if size > 1]


def values_differ(
    eager: torch.Tensor, other: torch.Tensor, reference: torch.Tensor | None, name: str
) -> str:
    """Where two tensors of one shape and dtype differ by more than rounding; "" for nowhere."""
    if eager.layout is not torch.strided:
        eager, other = eager.to_dense(), other.to_dense()
        reference = None
    if not eager.numel() or torch.equal(eager, other):
        return ""
    if not (eager.is_floating_point() or eager.is_complex()):
        return _text(eager, other, None, eager != other, name)
    wide = torch.complex128 if eager.is_complex() else torch.float64
    one, two = eager.to(wide), other.to(wide)
    relative, absolute = TOLERANCES.get(eager.dtype, (2e-2, 1e-2))
    same = (one == two) | (one.isnan() & two.isnan())
    limit = absolute + relative * one.abs()
    error = (two - one).abs()
    if reference is not None and reference.shape == one.shape:
        exact = reference.to(wide)
        own = (one - exact).abs()
        if bool((own <= FAR * limit)[own.isfinite()].all()):
            known = own.isfinite()
            worst = own[known].max() if bool(known.any()) else own.new_zeros(())
            allowed = torch.maximum(WORSE * worst, limit / 10)
            near = known & ((two - exact).abs() <= allowed)
            wrong = ~(same | near | ~known & (error <= limit))
            return _text(eager, other, exact, wrong, name) if bool(wrong.any()) else ""
    wrong = ~(same | (error <= limit))
    return _text(eager, other, None, wrong, name) if bool(wrong.any()) else ""


def _text(
    eager: torch.Tensor, other: torch.Tensor, exact: torch.Tensor | None, wrong: torch.Tensor,
    name: str,
) -> str:
    count = int(wrong.sum())
    place = [int(axis) for axis in wrong.nonzero()[0]]
    at = tuple(place)
    text = f"{count} of {eager.numel()} values differ; at {place} eager has {eager[at].item()!r}, "
    if exact is not None:
        text += f"float64 {exact[at].item()!r}, "
    return text + f"{name} {other[at].item()!r}"
