"""Convolutions of our own of which one reads another's result, as one step in strips of lines.

In: a schedule, after `fuse_convolutions.py`. Out: the same where some convolutions that stand one
behind another are a `ConvolutionChain` (`schedule.py`): what one stores for the next one only is
then read while it is in the second cache, and does not go through memory.

The next one has a window of its own for each channel, or a window of one element. Weights are
small: they are read for each strip. What lies between is large, and nobody else may want it. The
first ones move down to the last, so nothing in between may write what they read, or touch what they
write. Two threads compute the lines that both of their strips need: that does no harm, as the
kernel behind a convolution stores nothing that it reads, and adds to nothing (`gemms.is_plain`).
"""

from __future__ import annotations

import torch

from inductor.ir.convolutions import (
    MOST_LINKS,
    MOST_POINTERS,
    Geometry,
    geometry_of,
    is_own_convolution,
)
from inductor.ir.graph import ExternKernel, LoopGraph, ViewRef
from inductor.scheduler.domain import product as total
from inductor.scheduler.memory import touched
from inductor.scheduler.schedule import ConvolutionChain, FusedConvolution, Schedule, Step
from inductor.scheduler.uses import Uses, with_placed, written
from inductor.scheduler.verify import verify_steps

FEWEST_BYTES = 1 << 20
"""Of what lies between: less is in the second caches anyway."""
MOST_FIRST_WEIGHT, MOST_WEIGHT = 1 << 20, 256 << 10
"""Bytes of the weight of the first convolution, and of each behind it, read for each strip."""

Link = ExternKernel | FusedConvolution


def chain_convolutions(graph: LoopGraph, schedule: Schedule) -> Schedule:
    """See the top of the file."""
    finder = _Finder(graph, schedule)
    placed: dict[int, ConvolutionChain] = {}
    gone: set[int] = set()
    for position in range(len(schedule.steps)):
        if position in gone:
            continue
        found = finder.chain_from(position)
        if len(found) > 1:
            gone.update(found)
            links = tuple(link for at in found if (link := finder.links[at]) is not None)
            between = tuple(target_of(link) for link in links[:-1])
            placed[found[-1]] = ConvolutionChain(links, between)
    if not placed:
        return schedule
    chained = with_placed(schedule, placed, gone)
    verify_steps(graph, chained.steps)
    return chained


def call_of(link: Link) -> ExternKernel:
    """The convolution of a link."""
    return link.call if isinstance(link, FusedConvolution) else link


def target_of(link: Link) -> str:
    """Where its result is stored."""
    return link.target if isinstance(link, FusedConvolution) else link.name


def _geometry(link: Link) -> Geometry:
    geometry = geometry_of(call_of(link))
    assert geometry is not None
    return geometry


class _Finder(Uses):
    def __init__(self, graph: LoopGraph, schedule: Schedule) -> None:
        super().__init__(graph, schedule)
        self.links = [_link(step) for step in self.steps]
        self.touching: dict[str, list[int]] = {}
        self.shown: set[str] = set()  # memory that has another name, too
        for position, step in enumerate(self.steps):
            for name in set(touched(step)):
                self.touching.setdefault(name, []).append(position)
            if isinstance(step, ExternKernel) and step.target.is_view:
                self.shown.update((step.name, *step.reads()))

    def chain_from(self, position: int) -> list[int]:
        """Where the links of the longest chain that begins here stand."""
        found = [position]
        first = self.links[position]
        if first is None or _weight_bytes(_geometry(first)) > MOST_FIRST_WEIGHT:
            return found
        while len(found) < MOST_LINKS and (behind := self._next(found[-1])) is not None:
            if not self._can_move([*found, behind]):
                break
            found.append(behind)
        return found

    def _next(self, position: int) -> int | None:
        """The convolution that alone reads what this one stores, if it may be behind it."""
        link = self.links[position]
        assert link is not None
        name, layout = target_of(link), self.layouts[target_of(link)]
        users = self.touching[name]
        if name in self.outside or name in self.shown or len(users) != 2 or users[0] != position:
            return None
        behind = self.links[users[1]]
        if behind is None or layout.dtype is not torch.float32:
            return None
        if layout.numel() * 4 < FEWEST_BYTES or not may_follow(_geometry(behind)):
            return None
        return users[1] if _continues(link, behind, layout.numel()) else None

    def _can_move(self, positions: list[int]) -> bool:
        """Whether all can stand where the last one does."""
        for at in positions[:-1]:
            step = self.steps[at]
            between = range(at + 1, positions[-1])
            others = [self.steps[n] for n in between if n not in positions]
            reads, writes = set(step.reads()), set(written(step))
            if any(reads.intersection(written(other)) for other in others):
                return False
            if any(writes.intersection(touched(other)) for other in others):
                return False
        return not any(self.shown.intersection(touched(self.steps[at])) for at in positions)


def _link(step: Step) -> Link | None:
    """A step that may be part of a chain: tiles of Winograd's belong to two lines."""
    if isinstance(step, FusedConvolution):
        call = step.call
    elif isinstance(step, ExternKernel) and is_own_convolution(step):
        call = step
    else:
        return None
    fits = len(_pointers(step)) <= MOST_POINTERS
    return step if fits and not call.winograd and geometry_of(call) is not None else None


def may_follow(geometry: Geometry) -> bool:
    """Whether lines of a convolution need little beside what has just been stored."""
    is_point = geometry.window == (1, 1) and geometry.padding == (0, 0)
    return geometry.is_depthwise() or is_point and _weight_bytes(geometry) <= MOST_WEIGHT


def _continues(link: Link, behind: Link, elements: int) -> bool:
    """Whether a link convolves just what the other one stores, of so many elements, and reads it
    nowhere else."""
    name, (x, *others) = target_of(link), call_of(behind).args
    made, read = _geometry(link), _geometry(behind)
    assert isinstance(x, ViewRef)
    if x.buffer != name or x.offset or total(x.size) != elements:
        return False
    if (read.images, read.size, read.channels) != (made.images, made.out_size, made.out_channels):
        return False
    besides = behind.epilogue.reads() if isinstance(behind, FusedConvolution) else ()
    return name not in besides and not any(
        isinstance(view, ViewRef) and view.buffer == name for view in others
    )


def _weight_bytes(geometry: Geometry) -> int:
    return geometry.out_channels * geometry.depth() * 4


def _pointers(link: Link) -> set[str]:
    """The buffers that its epilogue gets."""
    if not isinstance(link, FusedConvolution):
        return set()
    return {*link.epilogue.reads(), *link.epilogue.writes()}
