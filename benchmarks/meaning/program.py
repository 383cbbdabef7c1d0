"""What a program is, and the table of all programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.meaning.engines import Engine


@dataclass(frozen=True)
class Program:
    """run: takes the engine and the variant, returns all that a user can see of it.

    report: the public report that it is written after; what: the report in one sentence.
    """

    topic: str
    variant: str
    what: str
    report: str
    run: Callable[[Engine, str], Any]

    @property
    def name(self) -> str:
        return f"{self.topic}:{self.variant}" if self.variant else self.topic


PROGRAMS: dict[str, Program] = {}
ISSUES = "https://github.com/pytorch/pytorch/issues/"


def program(topic: str, what: str, report: str | int, variants: str = "") -> Callable[..., Any]:
    """Registers a function of (engine, variant), once for each word of `variants`."""
    place = f"{ISSUES}{report}" if isinstance(report, int) else report

    def register(run: Callable[[Engine, str], Any]) -> Callable[[Engine, str], Any]:
        for variant in variants.split() or [""]:
            one = Program(topic, variant, what, place, run)
            PROGRAMS[one.name] = one
        return run

    return register


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Copies of the gradients of a module's parameters."""
    return {name: None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in module.named_parameters()}
