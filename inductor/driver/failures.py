"""What is done, and said, where a graph can't be compiled, or a compile fails.

In: a refusal (the backend does not know something) or a defect of the backend. Out: what runs
instead, counted and said once (`dynamo.base.fallbacks`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dynamo.aot.records import TAKES_WRAPPERS, PlainRefused, Unsupported
from dynamo.base import logs
from dynamo.base.fallbacks import BACKWARD, GRAPH, SYMBOLIC, failed, place_of, refused
from inductor.config import config
from inductor.driver.cpu import NoCompiler
from inductor.dynamic_shapes.subgraphs import NothingToCompile

INSTEAD = {
    GRAPH: "the inductor backend failed on a graph, which runs without it",
    SYMBOLIC: "the inductor backend failed on a graph for all sizes; it is compiled for each",
    BACKWARD: "the inductor backend failed on a backward graph, which runs without it",
}


def wants_kernels(settings: Mapping[str, Any]) -> bool:
    """Whether kernels are asked for, and not ATen operators alone."""
    with config.patch(**settings):
        return config.kernels


def as_captured(
    settings: Mapping[str, Any], gm: torch.fx.GraphModule, refusal: Unsupported
) -> Callable[..., Any]:
    """The graph as it was captured, for a refusal, which is counted. Errors: PlainRefused."""
    if gm.meta.get(TAKES_WRAPPERS):
        raise PlainRefused(refusal)
    if isinstance(refusal, NothingToCompile):
        logs.log("inductor").emit(f"this graph runs as it was captured: {refusal.reason}")
        return gm.forward
    place = place_of(refusal, gm.graph.nodes)
    refused(GRAPH, refusal.reason, place, quiet=not wants_kernels(settings))
    return gm.forward


def report_defect(
    kind: str, defect: Exception, gm: torch.fx.GraphModule | None, strict: bool | None = None,
    at_call: bool = False,
) -> None:
    """One warning, or the error itself; see `failed`."""
    place = place_of(defect, () if gm is None else gm.graph.nodes)
    failed(kind, defect, INSTEAD[kind], place, strict=strict, at_call=at_call)


@contextlib.contextmanager
def defects_refused(
    kind: str = SYMBOLIC, module: torch.fx.GraphModule | None = None
) -> Iterator[None]:
    """Defects inside are reported; then they are refusals, after which there is another way."""
    try:
        yield
    except (Unsupported, NoCompiler):
        raise
    except Exception as defect:
        report_defect(kind, defect, module)
        raise Unsupported(f"{type(defect).__name__}: {defect}") from defect
