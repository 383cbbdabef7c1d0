"""Changes between two calls (of the module, of what a call returned), and states of torch around a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.common import default_dtype
from tests.fuzz_arguments.world import World


def new_data(w: World) -> None:
    w.net.weight.data = torch.randn(2, 2)


def transposed_data(w: World) -> None:
    w.net.weight.data = w.net.weight.data.t()


def data_of_running(w: World) -> None:
    w.net.weight.data = w.net.running.to(w.net.weight.dtype)


def load(w: World) -> None:
    w.net.load_state_dict({k: torch.randn_like(v) for k, v in w.net.state_dict().items()}, assign=False)


def assign(w: World) -> None:
    w.net.load_state_dict({k: torch.randn_like(v) for k, v in w.net.state_dict().items()}, assign=True)


def tie(w: World) -> None:
    w.net.part.weight = w.net.weight


def untie(w: World) -> None:
    w.net.part.weight = nn.Parameter(torch.randn(2, 2, dtype=w.net.weight.dtype))


def tie_data(w: World) -> None:
    w.net.part.weight.data = w.net.weight.data


def buffer_is_weight(w: World) -> None:
    w.net.running = w.net.weight.data


def frozen(w: World, which: str, learns: bool) -> None:
    getattr(w.net, which).requires_grad_(learns)


def set_of(w: World, holder: Callable[[World], Any], name: str, value: Any) -> None:
    setattr(holder(w), name, value)


def swap_modules(w: World) -> None:
    w.net.part, w.net.act = w.net.act, w.net.part


def plain_part(w: World) -> None:
    w.net.part = nn.Linear(2, 2, bias=False).to(w.net.weight.dtype)


def step(w: World) -> None:
    with torch.no_grad():
        for p in w.net.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)


def write_former(w: World) -> None:
    for x in w.former:
        with contextlib.suppress(RuntimeError), torch.no_grad():
            x.fill_(7)


def write_former_data(w: World) -> None:
    for x in w.former:
        with contextlib.suppress(RuntimeError):
            x.data.add_(1)


def resize_former(w: World) -> None:
    for x in w.former[:1]:
        with contextlib.suppress(RuntimeError), torch.no_grad():
            x.resize_(0)


def learn_former(w: World) -> None:
    for x in w.former:
        with contextlib.suppress(RuntimeError):
            x.requires_grad_()


CHANGES: dict[str, Callable[[World], Any]] = {
    "weight.data = new": new_data,
    "weight.data = its transpose": transposed_data,
    "weight.data = running": data_of_running,
    "load_state_dict": load,
    "load_state_dict assign": assign,
    "tie": tie,
    "untie": untie,
    "tie data": tie_data,
    "buffer is weight": buffer_is_weight,
    "freeze weight": lambda w: frozen(w, "weight", False),
    "thaw weight": lambda w: frozen(w, "weight", True),
    "freeze part": lambda w: frozen(w, "part", False),
    "thaw part": lambda w: frozen(w, "part", True),
    "to double": lambda w: w.net.to(torch.float64),
    "to float": lambda w: w.net.to(torch.float32),
    "to half": lambda w: w.net.to(torch.bfloat16),
    "no bias": lambda w: set_of(w, lambda w: w.net, "bias", None),
    "a bias": lambda w: set_of(w, lambda w: w.net, "bias", nn.Parameter(torch.randn(2))),
    "bias of one": lambda w: set_of(w, lambda w: w.net, "bias", nn.Parameter(torch.randn(1))),
    "a mask": lambda w: set_of(w, lambda w: w.net, "mask", torch.tensor([1.0, 0.0])),
    "no mask": lambda w: set_of(w, lambda w: w.net, "mask", None),
    "mask is running": lambda w: set_of(w, lambda w: w.net, "mask", w.net.running),
    "new running": lambda w: set_of(w, lambda w: w.net, "running", torch.randn(2, 2)),
    "running of integers": lambda w: set_of(w, lambda w: w.net, "running", torch.ones(2, 2, dtype=torch.int64)),
    "running of one": lambda w: set_of(w, lambda w: w.net, "running", torch.ones(2)),
    "new plain": lambda w: set_of(w, lambda w: w.net, "plain", torch.randn(2, 2)),
    "plain is running": lambda w: set_of(w, lambda w: w.net, "plain", w.net.running),
    "write plain": lambda w: w.net.plain.fill_(3),
    "relu": lambda w: set_of(w, lambda w: w.net, "act", nn.ReLU()),
    "relu in place": lambda w: set_of(w, lambda w: w.net, "act", nn.ReLU(inplace=True)),
    "dropout": lambda w: set_of(w, lambda w: w.net, "act", nn.Dropout(0.0)),
    "a function": lambda w: set_of(w, lambda w: w.net.act, "forward", torch.sin),
    "scale": lambda w: set_of(w, lambda w: w.net, "scale", w.net.scale + 1),
    "scale is a tensor": lambda w: set_of(w, lambda w: w.net, "scale", torch.ones(2)),
    "swap modules": swap_modules,
    "another part": plain_part,
    "train": lambda w: w.net.train(),
    "eval": lambda w: w.net.eval(),
    "step": step,
    "zero_grad": lambda w: w.net.zero_grad(),
    "zero_grad in place": lambda w: w.net.zero_grad(set_to_none=False),
    "write former results": write_former,
    "write former results' data": write_former_data,
    "resize a former result": resize_former,
    "learn former results": learn_former,
    "forget kept": lambda w: w.kept.clear(),
}
STATES: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
    "half autocast": lambda: torch.autocast("cpu", torch.float16),
    "default double": lambda: default_dtype(torch.float64),
    "deterministic": lambda: deterministic(),
}


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
