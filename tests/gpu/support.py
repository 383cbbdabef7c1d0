"""What the tests on a GPU share: fresh inputs, errors against float64, and what was left uncompiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import dynamo

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float16, torch.bfloat16]
DTYPES = [*HALVES, torch.float32]
TIMES = 3.0  # ours may be that much further from float64 than eager


def left_uncompiled() -> dict[str, int]:
    """What did not run as compiled code since the last reset, by its reason."""
    found = {str(reason): count for reason, count in dynamo.counters["not_compiled"].items()}
    as_captured = dynamo.counters["inductor"]["graphs run as captured"]
    return found | ({"graphs run as captured": as_captured} if as_captured else {})


def data(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE).to(dtype)


def exactly(value: Any) -> Any:
    """The same in float64: tensors, modules, containers of them."""

    def exact(item: Any) -> Any:
        if isinstance(item, torch.nn.Module):
            return copy.deepcopy(item).double()
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            return item.detach().double().requires_grad_(item.requires_grad)
        return item

    return tree_map(exact, value)


def assert_near(found: Any, eager: Any, exact: Any, slack: float = 2.0, inside: torch.dtype | None = None) -> None:
    """Of each tensor the greatest distance to float64 is at most `TIMES` that of eager, and `slack` units of
    rounding of its greatest value; what is no float equals eager's. inside: what it was computed in, if that is
    less than what it is."""
    given, wanted, best = tree_leaves(found), tree_leaves(eager), tree_leaves(exact)
    assert len(given) == len(wanted), (len(given), len(wanted))
    for n, (one, other, true) in enumerate(zip(given, wanted, best, strict=True)):
        if not isinstance(other, torch.Tensor):
            assert one == other, (n, one, other)
            continue
        facts = one.dtype, one.shape, one.device, one.requires_grad
        assert facts == (other.dtype, other.shape, other.device, other.requires_grad), (n, facts, other.dtype, other.shape)
        if not other.is_floating_point():
            torch.testing.assert_close(one, other, rtol=1e-6, atol=0, equal_nan=True)
            continue
        kind = other.dtype if inside is None else inside
        error, allowed = distances(one.detach(), other.detach(), true.detach(), slack * torch.finfo(kind).eps)
        assert error <= allowed, f"result {n} {tuple(one.shape)} {one.dtype}: error {error:.2e}, allowed {allowed:.2e}"


def distances(one: torch.Tensor, other: torch.Tensor, true: torch.Tensor, slack: float) -> tuple[float, float]:
    """The greatest distance to `true`, and the allowed one."""
    one, wanted, true = one.double(), other.double(), true.double()
    good = wanted.isfinite() & true.isfinite()
    odd = ~wanted.isfinite()
    assert torch.equal(one[odd].nan_to_num(), wanted[odd].nan_to_num()), "inf and nan are elsewhere"
    assert one[~odd].isfinite().all(), "inf or nan where eager has none"
    if not good.any():
        return 0.0, 0.0
    scale = true[good].abs().max().item()
    error = (one - true)[good].abs().max().item()
    allowed = TIMES * (wanted - true)[good].abs().max().item()
    return error, allowed + slack * scale + 1e-30


def check(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], *, calls: int = 3, slack: float = 2.0,
          fullgraph: bool = True, seeded: bool = False, reference: Callable[..., Any] | None = None,
          **options: Any) -> Callable[..., Any]:  # fmt: skip
    """`function` compiled gives what it gives in eager, on fresh inputs at each call. seeded: it draws
    numbers, so that float64 would draw others; then eager itself is the reference. reference: for float64."""
    compiled = dynamo.compile(function, fullgraph=fullgraph, backend="inductor", **options)
    for n in range(calls):
        torch.manual_seed(n)
        args = make()
        others = tree_map(lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, args)
        best = exactly(args)
        torch.manual_seed(100 + n)
        wanted = function(*others)
        torch.manual_seed(100 + n)
        exact = wanted if seeded else (reference or function)(*best)
        torch.manual_seed(100 + n)
        found = compiled(*args)
        assert_near((found, args), (wanted, others), (exact, others if seeded else best), slack)
    assert not left_uncompiled(), left_uncompiled()
    return compiled


def training_step(model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Forward, loss, backward; gives the loss and all gradients."""

    def step(*args: Any, **kwargs: Any) -> Any:
        model.zero_grad(set_to_none=True)
        leaves = [x for x in tree_leaves(call(*args, **kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
        loss = sum(x.float().tanh().square().mean() if x.dtype != torch.float64 else x.tanh().square().mean() for x in leaves)
        loss.backward()
        return [loss.detach()], joined([p.grad for p in model.parameters() if p.grad is not None])

    return step


def joined(gradients: list[torch.Tensor]) -> torch.Tensor:
    """As one tensor: small ones are compared with the greatest of all."""
    return torch.cat([g.detach().reshape(-1) for g in gradients])


def check_model(model: torch.nn.Module, make: Callable[[], dict[str, Any]], *, training: bool, calls: int = 3,
                slack: float = 4.0, exact: Any = True, fullgraph: bool = True, **options: Any) -> None:  # fmt: skip
    """A model's results, or a training step's loss and gradients, and its buffers. exact: False where it draws
    numbers, so that eager itself is the reference; else what makes a float64 model of one, or True."""
    ours, twin, best = (copy.deepcopy(model).train(training) for _ in range(3))
    if exact:
        best = best.double() if exact is True else exact(best)
    inside = next(model.parameters()).dtype
    compiled = dynamo.compile(ours, fullgraph=fullgraph, backend="inductor", **options)
    steps = []
    for owner, call in ((ours, compiled), (twin, twin), (best, best)):
        steps.append(training_step(owner, call) if training else call)
    for n in range(calls):
        torch.manual_seed(n)
        args = make()
        found = []
        for step, given in zip(steps, (args, args, exactly(args) if exact else args), strict=True):
            torch.manual_seed(100 + n)
            with torch.set_grad_enabled(training):
                results = [x for x in tree_leaves(step(**given)) if isinstance(x, torch.Tensor)]
                found.append([x.detach().clone() for x in results])
        assert_near(*found, slack, inside)
    if training:
        assert_near(list(ours.buffers()), list(twin.buffers()), list(best.buffers()), slack, inside)
    assert not left_uncompiled(), left_uncompiled()


def kernels_of(call: Callable[[], Any]) -> list[str]:
    """The names of the kernels that a call runs."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.key for event in profile.key_averages()]
