"""How fast libraries, and our own code, compute a GEMM.

In: a `Linear`. Out: the logarithm of each candidate's time over ATen's, measured with weights that
are cold, by all threads together or, where others use the machine, by one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from inductor.autotune.library_convolutions import has_onednn
from inductor.autotune.linear import Linear
from inductor.autotune.trials import compare, measuring, noise
from inductor.kernels.cpu.gemm_libraries import OwnGemm

# Larger GEMMs are measured with fewer rows or columns.
MOST_FLOPS = 1 << 29
# Bytes of a weight that is measured.
MOST_TRIED = 1 << 23
# What stays unclear is measured for so long: GEMMs of so many operations, and small ones, which
# repay less.
LARGE = 1 << 28
MOST_SECONDS, FEWEST_SECONDS = 0.15, 0.03  # for one class of GEMMs; chosen, not measured
# Weights are read from memory in a model: those that are measured take turns.
COLD_BYTES, MOST_WEIGHTS = 1 << 25, 8
# Another GEMM must be clearly faster than the usual one.
ADVANTAGE = 0.95
# oneDNN's sums have twice the errors of the others', so it has to be faster than these by so much
# beside that.
LESS_EXACT, HANDICAP = ("onednn", "packed"), 1.1
# A prepared copy of a weight takes memory for good, so it has to be that much faster, too, where
# the weight can be read as it is: one that lies as [k, n] is copied piece by piece at each call,
# which so many rows repay.
COPIES, PRICE, ROWS_OF_COLUMNS = ("packed", "ours"), 1.08, 64
# What the thread that measures with all threads spends of the time that passes; with less, others
# use the machine, and only what one thread alone needs tells anything.
STEADY = 0.95


def margins(names: Collection[str]) -> dict[str, float]:
    """The logarithm that the time of each other candidate over that of the usual one has to be
    below."""
    usual = usual_of(names)
    needed = {name: math.log(ADVANTAGE) for name in names if name != usual}
    for name in needed:
        if name in LESS_EXACT:
            needed[name] -= math.log(HANDICAP)
        if name in COPIES and usual == "plain":
            needed[name] -= math.log(PRICE)
    return needed


def usual_of(names: Collection[str]) -> str:
    """The candidate that is taken unless another one is clearly faster."""
    if "plain" in names:
        return "plain"
    if "packed" not in names:
        return "aten"
    return "ours" if "ours" in names else "packed"


# Makes calls of each candidate for some threads, one for each weight.
Candidates = dict[str, Callable[[int], list[Callable[[], Any]]]]


def measured_sizes(linear: Linear) -> tuple[int, int, int]:
    """The GEMM's own, unless that takes too long: then fewer rows or columns. Of a weight that
    is large for them, a part: there are several copies of each candidate's."""
    m, n, k = linear.m, linear.n, linear.k
    while 2 * m * n * k > MOST_FLOPS and max(m, n) > 1:
        m, n = (m // 2, n) if m > n else (m, n // 2)
    while n * k * linear.dtype.itemsize > MOST_TRIED:
        n, k = (n // 2, k) if n > k else (n, k // 2)
    return m, n, k


def measure(linear: Linear, ours: OwnGemm | None, threads: int) -> dict[str, float]:
    """The logarithm of each candidate's time over ATen's: of all threads together, for libraries do
    not share work equally well; of one thread, where others use the machine, too."""
    m, n, k = measured_sizes(linear)
    seconds = max(FEWEST_SECONDS, MOST_SECONDS * min(1.0, 2 * m * n * k / LARGE))
    with torch.inference_mode(False), torch.no_grad(), measuring():
        x = noise(k, m).t() if linear.turned else noise(m, k)
        x, weight, bias = (each.to(linear.dtype) for each in (x, noise(n, k), noise(n)))
        names = names_of(linear, ours)
        usual = usual_of(names)
        held = weight.numel() * weight.element_size() * len(names)
        weights = [weight.clone() for _ in range(max(2, min(MOST_WEIGHTS, COLD_BYTES // held)))]
        candidates = candidates_of(
            linear, ours, x, weights, bias if linear.bias is not None else None)
        found = _with_all_threads(candidates, usual, threads, seconds)
        if found is None:
            found = _with_one_thread(candidates, usual, seconds)
    return {name: ratio - found["aten"] for name, ratio in found.items()}


def _with_all_threads(
    candidates: Candidates, usual: str, threads: int, seconds: float
) -> dict[str, float] | None:
    """None for one thread, and where others use the machine meanwhile: seen after a few rounds."""
    if threads == 1:
        return None
    timed = {name: make(threads) for name, make in candidates.items()}
    own, begin = time.thread_time(), time.perf_counter()

    def is_steady() -> bool:
        return time.thread_time() - own >= STEADY * (time.perf_counter() - begin)

    found = compare(timed, usual, margins(timed), time.perf_counter, seconds, is_steady)
    return found if is_steady() else None


def _with_one_thread(candidates: Candidates, usual: str, seconds: float) -> dict[str, float]:
    with _one_thread():
        timed = {name: make(1) for name, make in candidates.items()}
        return compare(timed, usual, margins(timed), time.thread_time, seconds)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def names_of(linear: Linear, ours: OwnGemm | None) -> list[str]:
    """The candidates for a GEMM."""
    names = ["aten"]
    if not linear.turned:  # oneDNN's GEMMs want rows
        if linear.frozen and has_onednn("_linear_pointwise", "_reorder_linear_weight"):
            names.append("packed")
        elif linear.dtype is torch.float32 and has_onednn("_linear_pointwise"):
            names.append("onednn")  # of half precision, ATen's are that
    if ours is not None:
        names.append("ours")
        if linear.frozen and not linear.turned and _can_be_plain(linear, ours):
            names.append("plain")
    return names


def _can_be_plain(linear: Linear, ours: OwnGemm) -> bool:
    if linear.columns:
        return linear.m > ROWS_OF_COLUMNS
    return bool(ours.is_plain(linear.m, linear.k))


def candidates_of(
    linear: Linear, ours: OwnGemm | None, x: torch.Tensor, weights: list[torch.Tensor],
    bias: torch.Tensor | None,
) -> Candidates:
    """Of these weights [n, k]."""
    (m, _), n = x.shape, weights[0].shape[0]
    out = x.new_empty(m, n)
    given = [w.t().contiguous() if linear.columns else w.t() for w in weights]

    def by_aten(turned: torch.Tensor, threads: int) -> None:
        if bias is None:
            torch.mm(x, turned, out=out)
        else:
            torch.addmm(bias, x, turned, out=out)

    def by_onednn(weight: torch.Tensor, turned: torch.Tensor, threads: int) -> None:
        if linear.columns and not linear.frozen:
            weight.copy_(turned)  # our kernel is faster than this
        torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    def calls(function: Callable[..., Any], right: list[Any]) -> Callable[[int], list[Any]]:
        return lambda threads: [functools.partial(function, *each, threads) for each in right]

    found = {"aten": calls(by_aten, [(turned,) for turned in given])}
    names = names_of(linear, ours)
    if "packed" in names:
        packed = [packed_linear(m, w) for w in weights]
        found["packed"] = calls(by_onednn, [(w, w) for w in packed])
    if "onednn" in names:
        pairs = zip(weights, given, strict=True)
        found["onednn"] = calls(by_onednn, [(w, turned.t()) for w, turned in pairs])
    if ours is not None:
        right = [ours.panels(turned) if linear.frozen else turned for turned in given]
        found["ours"] = calls(ours.multiply, [(x, each, bias, out) for each in right])
    if "plain" in names:
        assert ours is not None
        found["plain"] = calls(ours.multiply, [(x, each, bias, out) for each in given])
    return found


def packed_linear(rows: int, weight: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return made
