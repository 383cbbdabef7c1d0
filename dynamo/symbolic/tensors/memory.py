"""What must stay apart: objects that are keys or are changed; inputs of a graph share no memory.

Inputs of a graph that writes into one of them: with a numpy array among them, none share memory.

A backend looks for tensors that share a storage before it runs such a graph; an array's tensor has
a storage of its own over the same memory, so that the guards have to see to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.errors import Break, RestartTrace
from dynamo.guards.explain import span_of
from dynamo.guards.records import Guard
from dynamo.guards.sources import DictSource, ItemSource, ObjectSource, Source
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.tensors.modules import ModuleVar
from dynamo.symbolic.tensors.state import tensor_state

if TYPE_CHECKING:
    from dynamo.symbolic.core.var import Var
    from dynamo.symbolic.python.objects import ObjectVar
    from dynamo.symbolic.tensors.tensor import TensorVar


def keep_keys_apart(trace: Evaluation) -> None:
    """Guards that objects from outside that were keys of a dict or set stay different objects."""
    known = trace.state(Identities)
    keys = [*known.keyed, *known.real_keys] if known.keyed else []
    guard_different(trace, [var for var in keys if not isinstance(var.source, ObjectSource)])


def keep_changed_apart(trace: Evaluation) -> None:
    """Guards that what is changed stays another object than what else is looked at: with one object
    at two places a change by one name is seen by the other."""
    keep_written_apart(trace)
    changed = [value for value in map(real_of, trace.effects.targets()) if value is not None]
    met: dict[int, list[Var]] = {id(type(value)): [] for value in changed}
    own = set(map(id, changed))
    for value, var in trace.objects.items():
        if id(type(value)) in met and (id(value) in own or not is_part_of_module(var.source)):
            met[id(type(value))].append(var)
    for variables in met.values():
        guard_different(trace, variables)
    keep_dicts_apart(trace, own)
    owners = trace.objects.owners.values()
    for owner in [owner for owner in owners if id(owner.real) in own]:
        if not isinstance(owner, ModuleVar):
            guard_owners(trace, owner)


def keep_written_apart(trace: Evaluation) -> None:
    """Guards that tensors which the graph writes are other ones than what else is looked at, where
    pairs would be too many. (So those that are only read are kept apart from each other, too.)"""
    if tensor_state(trace).has_many_pairs():
        met = dict.fromkeys((*tensor_state(trace).mutated, *tensor_state(trace).looked_at))
        guard_different(trace, list(met))


def guard_owners(trace: Evaluation, changed: ObjectVar) -> None:
    """Guards that objects of the class of a changed one have instance dicts of their own."""
    sources = dict.fromkeys(
        owner.dict_place() for owner in trace.objects.owners.values()
        if owner.source is not None and type(owner.real) is type(changed.real))
    if len(sources) > 1:
        trace.guards.add(Guard("DIFFERENT", None, tuple(sources), None))


def keep_dicts_apart(trace: Evaluation, changed: set[int]) -> None:
    """The same of dicts and the instance dicts of objects."""
    dicts = {var.source: value for value, var in trace.objects.items()
             if type(value) is dict and id(value) not in trace.objects.owners
             and var.source is not None and not is_part_of_module(var.source)}
    if not dicts:
        return
    is_changed = any(id(value) in changed for value in dicts.values())
    known = trace.objects.owners.values()
    owners = [var.dict_place() for var in known if var.source is not None
              and (id(var.real) in changed or is_changed and not isinstance(var, ModuleVar))]
    if owners:
        trace.guards.add(Guard("DIFFERENT", None, (*dicts, *owners), None))


OF_MODULES = frozenset(vars(torch.nn.Module()))


def is_part_of_module(source: Source | None) -> bool:
    """True for the registries of a module, which stand nowhere else."""
    return isinstance(source, ItemSource) and isinstance(source.base, DictSource) and (
        source.key in OF_MODULES)


def real_of(var: Var) -> Any:
    """The object from outside that a Var stands for."""
    return getattr(var, "real", None) if hasattr(var, "real") else getattr(var, "_real", None)


def guard_different(trace: Evaluation, variables: list[Var]) -> None:
    sources = dict.fromkeys(var.source for var in variables if var.source is not None)
    if len(sources) > 1:
        trace.guards.add(Guard("DIFFERENT", None, tuple(sources), None))


def keep_apart(trace: Evaluation) -> None:
    """Guards that the inputs do not overlap. Errors: RestartTrace where two of them do."""
    inputs = tensor_state(trace).tensor_inputs
    if not any(var in tensor_state(trace).arrays for var in inputs) or len(inputs) < 2:
        return
    if not any(var.fake._version for var in inputs):
        return
    if not guard_apart(trace, inputs):
        trace.context.plain_arrays = True
        raise RestartTrace(None)


def guard_views_apart(trace: Evaluation) -> None:
    """Guards that no input is a view of one that was made to require grad: it would then say that
    it requires grad, too. Errors: RestartTrace where it may be one."""
    state = tensor_state(trace)
    for var, step in state.settings_of_grad.items():
        for other in dict.fromkeys((*state.tensor_inputs, *state.looked_at)):
            if other is var or var.real is None or other.real is None:
                continue
            alike = other.real.requires_grad is var.real.requires_grad
            if alike and other.real.is_floating_point() and not guard_apart(trace, [var, other]):
                raise RestartTrace(step, Break("call_of_unknown_function", "requires_grad_"))


def guard_apart(trace: Evaluation, inputs: list[TensorVar]) -> bool:
    """Guards that inputs do not overlap; False where two of them do."""
    spans = sorted(span_of(var.real) for var in inputs if var.real is not None)
    if any(two[0] < one[1] for one, two in itertools.pairwise(span for span in spans if span[1])):
        return False
    trace.guards.add(Guard("NO_STORAGE_ALIAS", None, tuple(var.source for var in inputs), None))
    return True


def check_watched(trace: Evaluation, changed: Iterable[TensorVar]) -> None:
    """Break where a tensor got another history after a hook was put on it, itself or by a write
    into another argument in its memory: such arguments are guarded to be apart."""
    state = tensor_state(trace)
    for var, history in state.watched.items():
        if var.fake.grad_fn is not history:
            raise Break("hooked_tensor_changed", repr(var))
        if history is None:
            continue
        places = {storage_of(item.fake) for item in (var, *changed) if item.fake.requires_grad}
        given = [item for item in dict.fromkeys((var, *state.tensor_inputs))
                 if item.source is not None and storage_of(item.fake) in places]
        if len(given) > 1 and not guard_apart(trace, given):
            raise Break("hooked_tensor_changed", repr(var))
