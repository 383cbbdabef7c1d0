"""A backward that runs as a chain of nodes of autograd's graph, each of which gives some gradients.

In: the plan of a program's node, its backward graph, the sizes of buckets. Out: the same program
under a chain. `DistributedDataParallel` sends a bucket of gradients as soon as they are there,
while backward goes on; one node gives all of its gradients together, when there is nothing left to
hide the sending behind. So backward is cut where buckets are full, and forward stays one graph.

The first node of the chain, as autograd meets it in backward, is that of the whole program: it has
saved everything. Edges lead from it to the inputs of its own segment and to a relay, from this one
to those of the second segment and to the next relay. What a segment hands on rides on the gradient
of that edge, a number that nothing reads; so where autograd stops, or starts again, it is freed or
made again with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn.parallel import DistributedDataParallel

from dynamo.aot.boxed import call_with
from dynamo.aot.followed_inputs import OURS
from dynamo.aot.lazy_backward import LazyBackward, Missing, is_in_transform
from dynamo.aot.segments import (
    Cut,
    Segment,
    choose_cut,
    cut_backward,
    may_be_cut,
    places_of_symbols,
)
from dynamo.base.failing_lines import show_line

Gradients = Sequence[Any]
LOST = (
    "dynamo: a gradient hook or a transform took away what one part of a backward hands to the next"
)


class Chain:
    """The segments of a backward, compiled when one is first needed.

    whole: the same backward in one; it is run where gradients are looked at, or where it has one
    segment. singly: each gradient is given by itself.
    """

    def __init__(self, whole: LazyBackward, cut: Cut, singly: bool) -> None:
        self.whole, self.cut = whole, cut
        self.given: Cut = tuple([(at,) for part in cut for at in part]) if singly else cut
        self._parts: dict[Missing, list[Part]] = {}
        self._symbols = [*places_of_symbols(whole.module(())).values()]
        self._lock = threading.Lock()

    def start(self, missing: Missing, given: list[Any]) -> Iterator[Gradients]:
        """The gradients that are given together, one such group after the other. given: as for the
        whole."""
        if len(self.cut) == 1 or self.whole.looks() or is_in_transform():
            return self.ready(self.whole(missing, given))
        segments = self.segments(missing, given)
        if self.given is self.cut:
            return segments
        return ([grad] for found in segments for grad in found)

    def segments(self, missing: Missing, given: list[Any]) -> Iterator[Gradients]:
        """Gives the gradients of one segment after the other."""
        parts = self._parts.get(missing)
        if parts is None:
            with self._lock:
                parts = self._parts.get(missing)
                if parts is None:
                    module = self.whole.module(missing)
                    segments = cut_backward(module, self.cut)
                    parts = [Part(self, missing, at, one) for at, one in enumerate(segments)]
                    self._parts[missing] = parts
        values = given + [given[at] if dim is None else given[at].shape[dim]
                          for at, dim in self._symbols]  # fmt: skip
        given.clear()
        for part in parts:
            yield part.run(values)

    def ready(self, gradients: Gradients) -> Iterator[Gradients]:
        """The same for gradients that are all there."""
        for part in self.given:
            yield [gradients[at] for at in part]


class Part:
    """A segment and its compiled graph."""

    def __init__(self, chain: Chain, missing: Missing, at: int, segment: Segment) -> None:
        self.chain, self.missing, self.at = chain, missing, at
        self.segment = segment
        self.count = len(chain.cut[at])
        self._compiled: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def run(self, values: list[Any]) -> Gradients:
        """Its gradients. values: see `Segment`; what it adds is put there."""
        compiled = self._compiled or self._made()
        given = [values[at] for at in self.segment.takes]
        for at in self.segment.last:
            values[at] = None  # each dies at its last use
        try:
            with torch.no_grad():
                found = call_with(compiled, given)
        except Exception as error:
            show_line(error, lambda: self.segment.module.graph.nodes)
            raise
        values.extend(found[self.count :])
        return found[: self.count]  # type: ignore[no-any-return]

    def _made(self) -> Callable[..., Any]:
        with self._lock:
            if self._compiled is None:
                module = self.segment.module
                which = (self.chain.cut, self.at)
                self._compiled = self.chain.whole.compiled(self.missing, module, which)
            return self._compiled


class Carrier:
    """Numbers that carry the rest of a backward along an edge of autograd's graph."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._zero = torch.zeros((), device=device)

    def link(self) -> torch.Tensor:
        """What a relay gives in forward, and the next node of the chain takes."""
        return torch.empty((), device=self.device)

    def load(self, rest: Iterator[Gradients]) -> torch.Tensor:
        """The gradient of such a link."""
        grad = self._zero.detach()
        grad.rest = rest  # type: ignore[attr-defined]
        return grad

    @staticmethod
    def unload(grad: torch.Tensor) -> Iterator[Gradients]:
        """What the gradient carries. Errors: RuntimeError where it is gone."""
        rest: Iterator[Gradients] | None = getattr(grad, "rest", None)
        if rest is None:
            raise RuntimeError(LOST)
        return rest


def make_relay(carrier: Carrier, count: int, is_last: bool) -> Callable[..., Any]:
    """The node that gives the gradients of a later segment. count: its gradients.

    The result takes the link of the node behind it, None for the last one, and the inputs that get
    the gradients; it gives its own link.
    """

    def forward(ctx: Any, *given: Any) -> Any:
        ctx.set_materialize_grads(False)
        return carrier.link()

    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * (1 + count)
        rest = carrier.unload(grad)
        found = next(rest)
        return (None if is_last else carrier.load(rest), *found)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), OURS: count}
    node: Any = type("CompiledFunctionPart", (torch.autograd.Function,), members)
    relay: Callable[..., Any] = super(torch.autograd.Function, node).apply
    return relay


def bucket_limits() -> tuple[int, ...]:
    """The sizes of the buckets of the `DistributedDataParallel` whose forward runs: the first ones,
    then that of all others."""
    module: Any = DistributedDataParallel._active_ddp_module
    listed = getattr(module, "bucket_bytes_cap_list", None)
    if listed:
        return tuple(listed)
    others: int = module.bucket_bytes_cap
    first: int = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
    return (min(first, others) if module.bucket_bytes_cap_default else others, others)


def arrival_counts() -> bool:
    """True where that module's reducer has yet to learn in which order gradients come: it fills
    its buckets anew in this order, and hooks see them."""
    module: Any = DistributedDataParallel._active_ddp_module
    return not getattr(module, "_has_rebuilt_buckets", True)


def choose_chain(
    whole: LazyBackward, gradients: Sequence[int], arrival: Sequence[int], args: Sequence[Any],
    limits: Sequence[int], singly: bool,
) -> Chain | None:
    """The chain for buckets of these sizes; None where backward is one segment or can't be cut,
    and its gradients may come in any order.

    gradients: the inputs that the backward's results belong to. arrival: the order in which eager
    gives them. args: the inputs of a call. singly: each is given by itself, in that order.
    """
    module: fx.GraphModule = whole.module(())
    results: Any = module.graph.output_node().args[0]
    there = [at for at in arrival if results[at] is not None]
    counted = [at for at in there if args[gradients[at]].is_leaf]
    cut: Cut = (tuple(there),)
    if may_be_cut(module):
        cut = choose_cut(module, there, counted, limits)
    return Chain(whole, cut, singly) if len(cut) > 1 or singly and len(there) > 1 else None
