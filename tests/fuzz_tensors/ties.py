"""Whether eager's own answer hangs on rounding alone where a compiled program gives another: a tie.

Eager runs again with inputs and results moved by about one unit in the last place. What a function of
one value makes is moved by a function of that value: what is equal stays equal, so that who wins among
equal values is no tie. Sums and products, whose order is free, are moved at random. A zero gets either sign.
In one run more, eager's kernels see each element apart, as the tail of a vector does.

An element is a tie only where such a run gives another answer at that element, and one as far away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

SUMS = re.compile(r"sum|mean|var|std|norm|prod|softmax|logsumexp|mm|dot|mv|linear|conv|loss|dist|cdist|renorm")
# Operators of one value that round nothing.
EXACT = re.compile(
    r"::(abs|neg|relu|clamp|clip|where|maximum|minimum|fmax|fmin|round|floor|ceil|trunc|sign|sgn|clone|copy|positive"
    r"|masked_fill|threshold|hardtanh|fill|eq|ne|lt|le|gt|ge|nan_to_num|copysign|heaviside|frac|fmod|remainder)"
)
# Gradients of one value that torch does not tag as pointwise.
GRADIENTS = re.compile(
    r"::(elu|hardshrink|hardsigmoid|hardswish|hardtanh|leaky_relu|log_sigmoid|softplus|softshrink)_backward$"
)
SEEDS = 12
MIX = -7046029254386353131  # an odd number of 64 bits
FACTOR = 8  # how many times as far as eager's other answer a compiled one may be

# (name, how eager does it, what moves the inputs and what statements make)
Variation = tuple[str, TorchDispatchMode, "Shaker | None"]


class Shaker:
    """Changes what a statement made by a few units in the last place."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *tensors: Any) -> None:
        for x in tensors:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and not x._is_view():
                self.shake(x)

    def shake(self, x: torch.Tensor, at_random: bool = False) -> None:
        if (x.is_inference() and not torch.is_inference_mode_enabled()) or (x.is_leaf and x.requires_grad) or x._is_zerotensor():
            return  # the last has no memory: `sgn` makes one as a gradient
        x.data.copy_(self.moved(x.detach(), at_random))
        x.data.masked_fill_(x.detach() == 0, -0.0 if self.seed % 2 else 0.0)

    def moved(self, x: torch.Tensor, at_random: bool = False) -> torch.Tensor:
        noise = self.random(x) if at_random else noise_of(x, self.seed)
        return x * (1 + 2 * torch.finfo(x.dtype).eps * noise.to(x.dtype))

    def random(self, x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=self.generator, device="cpu").to(x.device)


def noise_of(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers from -1 to 1, the same for equal values."""
    x = x.abs() if x.is_complex() else x
    bits = x.double().add(0.0).contiguous().view(torch.int64) + seed * 977
    bits = (bits ^ (bits >> 29)) * MIX
    bits = (bits ^ (bits >> 32)) * MIX
    return ((bits >> 40) & 0xFFFF).double() / 32767.5 - 1


class Shaken(TorchDispatchMode):
    """So changes what rounds, and what each operation of a backward makes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.shaker = Shaker(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        is_sum = SUMS.search(name) is not None
        rounds = torch.Tag.pointwise in func.tags and EXACT.search(name) is None
        is_backward = torch._C._current_graph_task_id() != -1
        if (is_sum or rounds or is_backward) and not any(is_alias(x) for x in func._schema.returns):
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor) and x.is_floating_point() and not x._is_view():
                    self.shaker.shake(x, at_random=is_sum)
                    if "logsumexp" in name:  # the logarithm of a sum that is moved
                        x.data.add_(2 * torch.finfo(x.dtype).eps * self.shaker.random(x).to(x.dtype))
        return result


class Apart(TorchDispatchMode):
    """Elements of memory with gaps: no kernel takes several at once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        alone = torch.Tag.pointwise in func.tags or GRADIENTS.search(func._schema.name) is not None
        if not alone or not isinstance(result, torch.Tensor) or func._schema.is_mutable:
            return result
        again = func(*tree_map_only(torch.Tensor, with_gaps, args), **tree_map_only(torch.Tensor, with_gaps, kwargs or {}))
        if not result._is_view() and not result._is_zerotensor() and result.dtype == again.dtype:
            result.copy_(again)
        return result


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0] if x.dim() else x


def is_alias(returned: Any) -> bool:
    return returned.alias_info is not None


def variations() -> Iterator[Variation]:
    yield "eager's own", Apart(), None
    for seed in range(SEEDS):
        yield "tie", Shaken(seed), Shaker(seed)


def tied(
    bad: torch.Tensor, away: torch.Tensor, want: torch.Tensor, runs: Callable[[Variation], torch.Tensor | None],
    distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> str:  # fmt: skip
    """What kind of tie all the bad elements are; "" where one is none. away: how far the compiled answer is."""
    left = bad.clone()
    for variation in variations():
        other = runs(variation)
        if other is not None and other.shape == want.shape:
            left &= ~(away <= FACTOR * distance(want, other)) | (distance(want, other) == 0)
        if not left.any():
            return variation[0]
    return ""
