"""Operators whose meta kernels ask for the device: sizes or strides differ between devices.

In: an operator, its arguments as meta tensors, the device that they stand for. Out: its results
there, as meta tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
OPERATORS = frozenset((
    aten.log_sigmoid_forward.default, aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default, aten._fft_r2c.default, aten._fft_c2r.default,
    aten.linalg_eig.default, aten._linalg_svd.default, aten.nonzero_static.default,
    aten.median.dim, aten.nanmedian.dim, aten.mode.default, aten.histc.default,
    aten.pixel_shuffle.default, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
    aten._weight_int4pack_mm.default, aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_no_training.default,
))  # fmt: skip


def results(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Any:
    """What `run` gives for tensors on the device."""
    # Here, since it brings SymPy, without which most programs are compiled.
    from torch._subclasses import FakeTensor, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def there(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return FakeTensor(mode, value, device)
        return [there(item) for item in value] if isinstance(value, (list, tuple)) else value

    def back(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            size, stride = tuple(value.shape), value.stride()
            return torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
        return type(value)(map(back, value)) if isinstance(value, (list, tuple)) else value

    with mode:
        found = run(*map(there, args), **{name: there(value) for name, value in kwargs.items()})
    return back(found)
