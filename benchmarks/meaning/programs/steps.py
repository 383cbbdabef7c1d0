"""Training steps: optimizers of the program's own, autocast with a scaler."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import gradients, program


class Warmed(torch.optim.Optimizer):
    """Adam with a warm-up; the number of steps is Python's, one for each parameter."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "warm": 3})
        self.update: Any = self.update_one

    @torch.no_grad()
    def update_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
        state["step"] += 1
        t, grad = state["step"], parameter.grad
        assert grad is not None
        state["m"].lerp_(grad, 0.1)
        state["v"].mul_(0.9).addcmul_(grad, grad, value=0.1)
        mean, square = state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.9**t)
        rate = group["lr"] * min(1.0, t / group["warm"])
        parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-rate)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)


@program("optimizer", "an optimizer that counts its steps in Python",
         "https://github.com/pytorch/pytorch/issues?q=optimizer+step+counter+recompile",
         "parameter whole schedule")
def optimizer(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    own = Warmed([{"params": net[0].parameters()},
                  {"params": net[2].parameters(), "lr": 0.01}])
    if variant == "parameter":
        own.update = engine.compile(own.update_one)
    step = own.step if variant == "parameter" else engine.compile(own.step)
    schedule = torch.optim.lr_scheduler.StepLR(own, 2, 0.5)
    losses = []
    for at in range(7):
        own.zero_grad()
        loss = ((net(torch.ones(2, 3) * at) - at) ** 2).mean()
        loss.backward()
        step()
        losses.append(loss.detach())
        if variant == "schedule":
            schedule.step()
    counts = [own.state[parameter]["step"] for parameter in net.parameters()]
    return losses, gradients(net), dict(net.named_parameters()), counts


@program("mixed-precision", "a whole step under autocast, with a scaler of gradients", 138412,
         "whole accumulate infinite")
def mixed_precision(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def step(x: torch.Tensor, y: torch.Tensor, last: bool) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        if last:
            scaler.unscale_(adam)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(adam)
            scaler.update()
            adam.zero_grad(set_to_none=True)
        return loss.detach()

    compiled, seen = engine.compile(step), []
    for at in range(6):
        rows = 4 + (at == 5)
        x, y = torch.randn(rows, 4), torch.randn(rows, 1)
        if variant == "infinite" and at == 2:
            x[0, 0] = float("inf")
        loss = compiled(x, y, variant != "accumulate" or at % 2 == 1)
        finite = bool(loss.isfinite())  # of infinities NaN and infinity say the same
        seen.append((loss.to(torch.bfloat16) if finite else finite, scaler.get_scale()))
    return seen, [bool(parameter.isfinite().all()) for parameter in net.parameters()]


@program("autocast-twice", "two steps under autocast in one function: weights change between them",
         "https://docs.pytorch.org/docs/stable/amp.html")
def autocast_twice(engine: Engine, variant: str) -> Any:
    net = nn.Linear(4, 4)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5)

    def steps(x: torch.Tensor) -> None:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(x).float().square().mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()

    compiled = engine.compile(steps)
    for at in range(2):
        compiled(torch.ones(3, 4) * (at + 1))
    return {name: value.detach().to(torch.bfloat16) for name, value in net.named_parameters()}
