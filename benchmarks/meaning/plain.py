"""What a program returned, as plain data that goes from process to process and is compared."""

from __future__ import annotations

import math
from typing import Any

import torch

# Rounding may differ where fusion adds in another order; meaning may not.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
HALF = {torch.float16: 5e-3, torch.bfloat16: 4e-2}  # of the norm


def plain(value: Any) -> Any:
    """Tensors as ("tensor", data, dtype, shape, requires_grad), the rest as lists and numbers."""
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return ("subclass", type(value).__name__, str(value))
        data = value.detach().clone()
        return ("tensor", data, str(value.dtype), tuple(value.shape), value.requires_grad)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, int | str) else repr(key): plain(item)
                for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return f"{type(value).__name__}: {value!r}"


def difference(expected: Any, found: Any, path: str = "") -> str | None:
    """The first place where two results differ, in words; None where they agree."""
    if isinstance(expected, tuple) and isinstance(found, tuple) and expected[0] == found[0]:
        if expected[0] == "tensor":
            return _of_tensors(expected, found, path)
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{path}: {len(found)} values, {len(expected)} in eager"
        pairs = ((f"{path}[{at}]", a, b) for at, (a, b) in enumerate(
            zip(expected, found, strict=True)))
        return next((d for where, a, b in pairs if (d := difference(a, b, where))), None)
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            return f"{path}: keys {list(found)}, {list(expected)} in eager"
        items = ((f"{path}.{key}", value, found[key]) for key, value in expected.items())
        return next((d for where, a, b in items if (d := difference(a, b, where))), None)
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=2e-4, abs_tol=1e-5)
        if same or (math.isnan(expected) and math.isnan(found)):
            return None
    elif type(expected) is type(found) and expected == found:
        return None
    return f"{path}: {str(found)[:120]}, {str(expected)[:120]} in eager"


def _of_tensors(expected: Any, found: Any, path: str) -> str | None:
    if expected[2:] != found[2:]:
        return f"{path}: {found[2:]}, {expected[2:]} in eager"
    a, b = expected[1], found[1]
    if not (a.is_floating_point() or a.is_complex()):
        return None if torch.equal(a, b) else f"{path}: other elements"
    wide = torch.complex128 if a.is_complex() else torch.float64
    wider, found_wider = a.to(wide), b.to(wide)
    if a.dtype in HALF:  # fused operations round less often: elements differ, the whole does not
        close = (wider - found_wider).norm() <= HALF[a.dtype] * wider.norm()
    else:
        tolerance = TOLERANCES.get(a.dtype, 1e-4)
        close = torch.allclose(wider, found_wider, rtol=tolerance, atol=tolerance, equal_nan=True)
    if close:
        return None
    return f"{path}: off by {(wider - found_wider).abs().max().item():.3g}"
