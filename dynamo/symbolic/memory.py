"""What must stay apart: objects that are keys, and inputs of a graph that share no memory.

Inputs of a graph that writes into one of them: with a numpy array among them, none share memory.

A backend looks for tensors that share a storage before it runs such a graph; an array's tensor has
a storage of its own over the same memory, so that the guards have to see to it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from dynamo.base.errors import RestartTrace
from dynamo.guards.explain import span_of
from dynamo.guards.records import Guard
from dynamo.guards.sources import ObjectSource

if TYPE_CHECKING:
    from dynamo.symbolic.trace import Trace


def keep_keys_apart(trace: Trace) -> None:
    """Guards that objects from outside that were keys of a dict or set stay different objects."""
    keys = [*trace.keyed, *trace.real_keys] if trace.keyed else []
    sources = dict.fromkeys(var.source for var in keys if not isinstance(var.source, ObjectSource))
    if len(sources) > 1:
        trace.guards.add(Guard("DIFFERENT_KEYS", None, tuple(sources), None))


def keep_apart(trace: Trace) -> None:
    """Guards that the inputs do not overlap. Errors: RestartTrace where two of them do."""
    inputs = trace.tensor_inputs
    if not any(var in trace.arrays for var in inputs) or len(inputs) < 2:
        return
    if not any(var.fake._version for var in inputs):
        return
    spans = sorted(span_of(var.real) for var in inputs if var.real is not None)
    if any(two[0] < one[1] for one, two in itertools.pairwise(span for span in spans if span[1])):
        trace.context.plain_arrays = True
        raise RestartTrace(None)
    trace.guards.add(Guard("NO_STORAGE_ALIAS", None, tuple(var.source for var in inputs), None))
