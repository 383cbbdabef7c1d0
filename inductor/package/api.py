"""What `dynamo.package` asks for: a captured graph becomes a folder.

In: the graph, where its inputs come from and its results go. Out: files. What can't be in a package
is an error of one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Unsupported
from dynamo.base import errors
from dynamo.base.shortfalls import place_of
from inductor.config import settings_of
from inductor.package.folder import Facts, write_folder
from inductor.package.graph import Code, Place, generate
from inductor.package.tables import Argument, NoType


def write(
    target: Path, gm: fx.GraphModule, examples: list[Any], inputs: Sequence[Place],
    results: Sequence[Place], arguments: Sequence[tuple[str, torch.Tensor]], name: str,
    description: Mapping[str, Any], options: Mapping[str, Any] | None, processor: str | None,
) -> None:
    """Compiles the graph and writes the package. arguments: names and tensors of the call; see
    `graph.generate` and `folder.Facts`. Errors: errors.Unsupported; those of `write_folder`."""
    tensors = [tensor for _, tensor in arguments]
    settings = settings_of(None, options)
    try:
        code = generate(gm, examples, tensors, inputs, results, settings)
        _check_operators(code)
        given = [
            Argument(label, tensor.dtype, tuple(tensor.shape), tensor.stride(), n in code.written)
            for n, (label, tensor) in enumerate(arguments)]  # fmt: skip
        write_folder(target, code, Facts(name, given, description, processor))
    except Unsupported as refusal:
        place = place_of(refusal, gm.graph.nodes)
        text = f"{place}: {refusal.reason}" if place else refusal.reason
        raise errors.Unsupported(text) from None
    except NoType as dtype:
        raise errors.Unsupported(f"a tensor is of {dtype}, which packages don't know") from None


def _check_operators(code: Code) -> None:
    """Errors: errors.Unsupported where an operator of libtorch is left."""
    if code.libtorch:
        listed = "; ".join(f"{line + ': ' if line else ''}{name}" for name, line in code.libtorch)
        raise errors.Unsupported(
            f"{listed}: there is no kernel of ours for this, and a package has no libtorch")
