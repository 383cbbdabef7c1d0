"""The backward half of a graph, compiled when it is first called.

In: the half and its compiler. Out: what runs it, once for each set of outputs that have a gradient.
Where its forward is compiled in the background, so is this: the set that is likely together with
forward; for another one the graph runs as ATen operators until it is compiled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.anomalies import check_gradients, copies_of, is_looking
from dynamo.aot.boxed import call_with, run_as_it_is
from dynamo.aot.joint import Tangent, tangent_name
from dynamo.aot.missing import has_arrivals, without_tangents
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.records import Compiler, Keeping
from dynamo.background.jobs import is_background, later, note_part
from dynamo.base.failing_lines import show_line
from dynamo.base.fallbacks import BACKWARD, line_of, refused

Missing = tuple[int, ...]


VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # the enumeration in Python has no name for it


def is_in_transform() -> bool:
    """True where tensors may be batched, by torch.func or for `is_grads_batched`."""
    return (torch._C._dispatch_tls_is_dispatch_key_included(VMAP)
            or torch._C._are_functorch_transforms_active())


class NotCached(Exception):
    """What is asked for has not been compiled before."""


class LazyBackward:
    """Compiles the backward module when first called, once for each set of outputs in use.

    keeping: gives the compiled graph of (half, missing outputs), or has it made by its argument.
    likely: the outputs that will have no gradient, as far as one can tell.
    """

    def __init__(
        self, half: int, graph: CachedGraph, compiler: Compiler, keeping: Keeping,
        likely: Missing = (),
    ) -> None:
        self._half, self._graph = half, graph
        self._compiler, self._keeping = compiler, keeping
        self._compiled: dict[Missing, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._background = is_background()
        note_part(lambda: self._prepare(likely))

    def __call__(self, missing: Missing, given: list[Any]) -> Any:
        """missing: the outputs that have no gradient; their tangents are not given. The list may
        be empty afterwards: what nothing else holds dies after its last use."""
        if is_in_transform():
            return self._by_aten(missing, given)
        compiled = self._compiled.get(missing)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(missing)
                if compiled is None:
                    make = self._later if self._background else self._made
                    compiled = self._compiled[missing] = make(missing)
        try:
            if is_looking():
                return self._looked_at(compiled, missing, given)
            return call_with(compiled, given)
        except Exception as error:
            show_line(error, lambda: self._graph.module().graph.nodes)
            raise

    def _by_aten(self, missing: Missing, given: list[Any]) -> Any:
        """The gradients as torch's transform computes them, whose tensors have no memory of their
        own: `torch.autograd.grad(is_grads_batched=True)`, say."""
        module = self.module(missing)
        refused(BACKWARD, "it is called inside of vmap or another transform of torch.func",
                line_of(module.graph.nodes), strict=False)
        return run_as_it_is(module)(*given)

    def _looked_at(
        self, compiled: Callable[..., Any], missing: Missing, given: list[Any]
    ) -> Any:
        copies = copies_of(given)
        found = call_with(compiled, given)
        check_gradients(found, self.module(missing), copies)
        return found

    @staticmethod
    def looks() -> bool:
        """True where a call checks its gradients."""
        return is_looking()

    def module(self, missing: Missing) -> fx.GraphModule:
        """The graph of that set."""
        module: fx.GraphModule = self._graph.module()
        is_whole = not missing and not has_arrivals(module)
        return module if is_whole else without_tangents(module, _names(missing))

    def _made(self, missing: Missing) -> Callable[..., Any]:
        return self._keeping((self._half, missing), lambda: self._compile(self.module(missing)))

    def _prepare(self, missing: Missing) -> None:
        """As if backward were called: autograd runs it without gradients, and outside of autocast.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            self._compiled[missing] = self._made(missing)

    def _later(self, missing: Missing) -> Callable[..., Any]:
        """What an earlier process has cached, or the graph as it is until it is compiled."""
        try:
            return self._keeping((self._half, missing), _not_now)
        except NotCached:
            meanwhile = run_as_it_is(without_tangents(self._graph.module(), _names(missing)))

        def compile_now() -> Callable[..., Any]:
            self._compiled[missing] = self._made(missing)
            return self._compiled[missing]

        return later(compile_now, meanwhile, _raise)

    def compiled(self, missing: Missing, part: fx.GraphModule, which: Any) -> Callable[..., Any]:
        """A part of the graph of that set, compiled. which: tells it from others."""
        return self._keeping((self._half, missing, which), lambda: self._compile(part))

    def _compile(self, module: fx.GraphModule) -> Callable[..., Any]:
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        return self._compiler(module, [node.meta["val"] for node in nodes])


def _names(missing: Missing) -> set[str]:
    return {tangent_name(output) for output in missing}


def _not_now() -> Callable[..., Any]:
    raise NotCached


def _raise(error: Exception) -> None:
    raise error  # compilers of backwards raise what the user wants to see only


def likely_missing(tangents: Sequence[tuple[int, int, Tangent]]) -> Missing:
    """The outputs that nobody will differentiate: all but the loss, where one is a single number.
    """
    losses = [output for output, _, tangent in tangents
              if tangent.form is not None and tangent.form[0] == ()]
    if len(losses) != 1:
        return ()
    return tuple(output for output, *_ in tangents if output != losses[0])
