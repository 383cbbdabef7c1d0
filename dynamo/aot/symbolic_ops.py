"""Operations on fakes with symbolic sizes, remembered: FakeTensor takes milliseconds for each.

In: one ATen call on FakeTensors. Out: its result. What a call made of equal expressions is kept and
made again without the kernel. That is right in one world only: its ShapeEnv has what the kernel
assumed of these expressions at the first call, and never forgets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from dynamo.aot.fakes import expression_of, facts_of, is_symbolic_number, storage_key
from dynamo.base.value_types import CONSTANTS
from dynamo.shapes.facts import Facts, Fresh, Outcome, Same, Several, View


class _Uncacheable(Exception):
    """The call has an argument or a result that is no part of a key."""


class RememberedOps:
    """run: what runs an operation on fakes of the mode."""

    def __init__(self, mode: FakeTensorMode, run: Callable[..., Any]) -> None:
        self.mode = mode
        self.run = run
        self._outcomes: dict[Any, Outcome] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fakes: list[FakeTensor] = []
        try:
            key = (func, torch.get_default_dtype(), self._key(args, fakes), *[
                (name, self._key(value, fakes)) for name, value in kwargs.items()
            ])  # fmt: skip
        except _Uncacheable:
            return self.run(func, args, kwargs)
        known = self._outcomes.get(key)
        if known is not None:
            return self._repeat(known, fakes)
        result = self.run(func, args, kwargs)
        if torch.Tag.inplace_view not in func.tags:
            try:
                self._outcomes[key] = _outcome_of(result, fakes)
            except _Uncacheable:
                pass
        return result

    def _key(self, value: Any, fakes: list[FakeTensor]) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            if value.constant is not None or value.fake_mode is not self.mode:
                raise _Uncacheable
            fakes.append(value)
            return _facts_key(facts_of(value))
        if kind is list or kind is tuple or kind is torch.Size:
            return tuple([self._key(item, fakes) for item in value])
        if is_symbolic_number(value):
            return (kind, expression_of(value))
        if isinstance(value, CONSTANTS):
            return (kind, repr(value) if kind is float else value)  # 0.0 is not -0.0
        raise _Uncacheable

    def _repeat(self, outcome: Outcome, fakes: list[FakeTensor]) -> Any:
        if isinstance(outcome, Same):
            return fakes[outcome.argument]
        if isinstance(outcome, Several):
            return outcome.kind([self._repeat(item, fakes) for item in outcome.items])
        assert isinstance(outcome, Fresh | View)
        facts = outcome.facts
        with in_kernel_invocation_manager(self.mode), torch.no_grad():
            if isinstance(outcome, View):
                meta = torch.as_strided(
                    fakes[outcome.argument], facts.size, facts.stride, facts.offset)
            else:
                meta = torch.empty_strided(
                    facts.size, facts.stride, dtype=facts.dtype, device="meta")
        return FakeTensor(self.mode, meta, facts.device)


def _facts_key(facts: Facts) -> Any:
    size, stride = (tuple(map(expression_of, part)) for part in (facts.size, facts.stride))
    return (size, stride, expression_of(facts.offset), facts.dtype, facts.device, facts.bits)


def _outcome_of(result: Any, fakes: list[FakeTensor]) -> Outcome:
    if isinstance(result, (list, tuple)):
        items = tuple([_outcome_of(item, fakes) for item in result])
        fresh = [storage_key(item) for item, made in zip(result, items, strict=True)
                 if type(made) is Fresh]  # fmt: skip
        if len(set(fresh)) != len(fresh) or not items:
            raise _Uncacheable
        return Several(type(result), items)
    if type(result) is not FakeTensor or result.constant is not None:
        raise _Uncacheable
    for index, fake in enumerate(fakes):
        if fake is result:
            return Same(index)
    facts = facts_of(result)
    for index, fake in enumerate(fakes):
        if storage_key(fake) == storage_key(result):
            if facts.bits or facts_of(fake).bits or fake.dtype != result.dtype:
                raise _Uncacheable
            return View(facts, index)
    if facts.bits or type(facts.offset) is not int or facts.offset:
        raise _Uncacheable
    return Fresh(facts)
