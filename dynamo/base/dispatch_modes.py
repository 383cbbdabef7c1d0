"""Modes of ours that see ATen operators."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OwnDispatchMode(TorchDispatchMode):
    """A mode for whose calls torch does not import a compiler of its own, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
