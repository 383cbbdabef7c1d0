"""What `dynamo.package` asks for: captured graphs become a folder.

In: a graph for each set of sizes, where its inputs come from and its results go. Out: files. What
can't be in a package is an error of one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Unsupported
from dynamo.base import errors
from dynamo.base.fallbacks import place_of
from inductor.config import settings_of
from inductor.operators.attention_ops import has_triton
from inductor.package.cpu_graph import Code, Place, Weights, generate
from inductor.package.folder import Package, write_folder
from inductor.package.gpu_graph import GpuCode, generate_gpu
from inductor.package.tables import Argument, NoType, Variant


class Writer:
    """Collects the variants of a package, then writes it."""

    def __init__(self, options: Mapping[str, Any] | None, capability: int = 0) -> None:
        """capability: of the GPU that the package is for (90 stands for 9.0), 0 for a CPU."""
        self._settings = settings_of(None, options)
        self._capability = capability
        if capability and not has_triton():
            raise errors.Unsupported("triton is not installed, and kernels for a GPU need it "
                                     "(pip install triton)")
        self._weights = Weights()
        self._variants: list[Variant] = []

    def add(
        self, gm: fx.GraphModule, examples: list[Any], inputs: Sequence[Place],
        results: Sequence[Place], arguments: Sequence[tuple[str, torch.Tensor]],
    ) -> None:
        """Compiles a graph. arguments: names and tensors of the call; see `cpu_graph.generate`.
        Errors: errors.Unsupported."""
        tensors = [tensor for _, tensor in arguments]
        try:
            code = self._generate(gm, examples, tensors, inputs, results)
        except Unsupported as refusal:
            place = place_of(refusal, gm.graph.nodes)
            text = f"{place}: {refusal.reason}" if place else refusal.reason
            raise errors.Unsupported(text) from None
        given = [
            Argument(label, tensor.dtype, tuple(tensor.shape), tensor.stride(), n in code.written)
            for n, (label, tensor) in enumerate(arguments)]  # fmt: skip
        self._variants.append(Variant(code, given))

    def _generate(
        self, gm: fx.GraphModule, examples: list[Any], tensors: Sequence[torch.Tensor],
        inputs: Sequence[Place], results: Sequence[Place],
    ) -> Code | GpuCode:
        given = (gm, examples, tensors, inputs, results, self._settings, self._weights)
        if self._capability:
            return generate_gpu(*given, self._capability)
        code = generate(*given)
        _check_operators(code)
        return code

    def write(
        self, target: Path, name: str, description: Mapping[str, Any], processor: str | None
    ) -> None:
        """Errors: errors.Unsupported; those of `write_folder`."""
        package = Package(name, self._variants, self._weights.tensors, description, processor,
                          self._capability)
        try:
            write_folder(target, package)
        except Unsupported as refusal:
            raise errors.Unsupported(refusal.reason) from None
        except NoType as dtype:
            raise errors.Unsupported(f"a tensor is of {dtype}, which packages don't know") from None


def _check_operators(code: Code) -> None:
    """Errors: errors.Unsupported where an operator of libtorch is left."""
    if code.libtorch:
        listed = "; ".join(f"{line + ': ' if line else ''}{name}" for name, line in code.libtorch)
        raise errors.Unsupported(
            f"{listed}: there is no kernel of ours for this, and a package has no libtorch")
