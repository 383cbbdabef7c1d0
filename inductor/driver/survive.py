"""Backward graphs whose compiled code fails when it is called.

Backward has its own inputs, which autograd has saved, so the frame can't run again: the ATen graph
does, on what it was given. What raises there, too, is the program's error. After two failures the
ATen graph is what runs. Calls are looked at until one succeeds: a later one frees what it was given
while it runs, so that nothing is left to run again.

In: the compiled function and its ATen graph. Out: a function like it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.boxed import call_with, run_as_it_is, with_list
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.recipes import noted
from dynamo.base.errors import DynamoError
from dynamo.base.failing_lines import note_stack, stack_of
from dynamo.base.fallbacks import CALL, Site, failed, place_of
from dynamo.base.signals import is_of_signal
from dynamo.base.wrong_fakes import wrong_fake_in

MOST_FAILURES = 2  # calls; from then on, backward runs as ATen: chosen, not measured
TEXT = "the call of a compiled backward failed, which has run as ATen operators"


def surviving(
    compiled: Callable[..., Any], module: fx.GraphModule, site: Site
) -> Callable[..., Any]:
    """See the top of the file."""
    if any(node.target is torch.ops.aten.copy_.default for node in module.graph.nodes):
        return compiled
    return survivor_of(compiled, CachedGraph(module), site)


def survivor_of(
    compiled: Callable[..., Any], graph: CachedGraph, site: Site
) -> Callable[..., Any]:
    """What `surviving` gives for a graph that writes into nothing."""
    survivor = _Survivor(compiled, graph, site)

    def call(*args: Any) -> Any:
        return survivor.of_list([*args])

    return with_list(noted(call, survivor_of, compiled, graph, site), survivor.of_list)


class _Survivor:
    """called: what runs. tried: it has given results, or failed for good."""

    def __init__(self, compiled: Callable[..., Any], graph: CachedGraph, site: Site) -> None:
        self.called, self.graph, self.site = compiled, graph, site
        self.failures = 0
        self.tried = False

    def of_list(self, given: list[Any]) -> Any:
        if self.tried:
            return call_with(self.called, given)
        args = tuple(given)
        try:
            results = call_with(self.called, given)
        except Exception as error:
            if isinstance(error, (DynamoError, Warning)) or is_of_signal(error):
                raise
            try:
                results = run_as_it_is(self.graph.module())(*args)
            except Exception as own:
                note_stack(error, stack_of(own))
                raise error from None
            self._note(error, wrong_fake_in(lambda: run_as_it_is(self.graph.module())(*args)))
            return results
        self.tried = True
        return results

    def _note(self, error: Exception, fake: str) -> None:
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            self.called, self.tried = run_as_it_is(self.graph.module()), True
        place = place_of(error, self.graph.module().graph.nodes) or self.site.place
        failed(CALL, error, TEXT, place, strict=self.site.strict, at_call=True, fake=fake)
