"""The settings of those stages that choose between ATen, oneDNN and kernels of our own on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from inductor.config import OWN


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """mode: of `config.library_kernels`. ours: kernels of our own are candidates."""

    mode: str = "measure"
    ours: bool = True

    @property
    def measures(self) -> bool:
        """Whether what is not known may be measured."""
        return self.mode == "measure"

    @property
    def own_alone(self) -> bool:
        """Whether no library is a candidate where a kernel of our own can do it."""
        return self.mode == OWN
