"""Types whose objects are known by their value: they may be compared, written down and shared."""

from __future__ import annotations

import torch

VALUES = (bool, int, float, complex, str, bytes, type(None))
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# What operators take beside tensors and lists.
CONSTANTS = (bool, int, float, complex, str, type(None), *NAMED)
