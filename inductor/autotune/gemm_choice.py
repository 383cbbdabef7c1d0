"""Which candidate computes a GEMM: answers by shape class, cached on disk.

In: a `Linear`. Out: the name of what computes it. Classes that are not known, or not well, are
measured (`gemm_trials.py`), as long as there is time.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

import torch

from dynamo.store.content import Store
from dynamo.store.processor import ONEDNN, OURS, processor
from inductor.autotune.answers import Answers
from inductor.autotune.gemm_trials import margins, measure, names_of, usual_of
from inductor.autotune.library_settings import LibrarySettings
from inductor.autotune.linear import Linear
from inductor.autotune.trials import is_time_left
from inductor.kernels.cpu.gemm import GEMM_NAME
from inductor.kernels.cpu.gemm_libraries import OwnGemm, load_gemm
from inductor.kernels.cpu.half_gemm import HALF_NAME
from inductor.runtime.own_libraries import loaded

# Below, our own GEMM is not worth building its library.
FEWEST_OPERATIONS = 1 << 20
USUAL = LibrarySettings()


def choice_of(ratios: Mapping[str, float]) -> str:
    """The usual one unless another one is clearly faster. Of frozen weights, that is our own,
    without a copy if it can, for it takes in what follows; else oneDNN's."""
    usual, needed = usual_of(ratios), margins(ratios)
    over = {name: ratios[name] - ratios[usual] - needed[name] for name in needed}
    best = min(over, key=over.__getitem__, default=usual)
    return best if over and over[best] < 0 else usual


class Chooser:
    """Answers by shape class; measures those that the cache does not know, or not well."""

    def __init__(
        self, store: Store, threads: int, settings: LibrarySettings = USUAL
    ) -> None:
        self.store = store
        self.threads = threads
        self.settings = settings
        ours = f"{GEMM_NAME} {HALF_NAME}" if settings.ours else ""
        self.answers = Answers(store, "gemms", threads, ours=ours)

    def fastest(self, linear: Linear) -> str:
        """A key of `REWRITES` (`library_kernels.py`); after "ours" the library is loaded."""
        if self.settings.own_alone:
            return self._fastest_own(linear)
        said = processor().fastest
        if said and self.settings.measures:
            return self._by(said, linear)
        name = repr(linear.shape_class())
        known = self.answers.known.get(name)
        if not self.settings.measures:
            if known is None:
                return "aten"
        elif known is None or is_time_left() and known.is_worth_another(choice_of(known.ratios)):
            worth = linear.m * linear.n * linear.k >= FEWEST_OPERATIONS
            ours = self.ours(linear.dtype) if worth else None
            if linear.turned and ours is None:
                return "aten"
            if not is_time_left():
                return self._likely(linear, ours)
            known = self.answers.add(name, measure(linear, ours, self.threads))
        answer = choice_of(known.ratios)
        is_ours = answer in ("ours", "plain")
        return "aten" if is_ours and self.ours(linear.dtype) is None else answer

    def _by(self, library: str, linear: Linear) -> str:
        """What computes it by a library that is said to be the fastest, where that can."""
        ours = self.ours(linear.dtype) if library == OURS else None
        names = names_of(linear, ours)
        wanted = {ONEDNN: ("packed", "onednn"), OURS: ("plain", "ours")}.get(library, ())
        return next((name for name in wanted if name in names), "aten")

    def _fastest_own(self, linear: Linear) -> str:
        """The same without any library's: weights that lie as they are, or a prepared copy, which
        takes the place of the weight."""
        ours = self.ours(linear.dtype)
        if ours is None:
            return "aten"
        names = [name for name in names_of(linear, ours) if name in ("ours", "plain")]
        small = linear.m * linear.n * linear.k < FEWEST_OPERATIONS
        if len(names) == 1 or small:
            return names[0]
        name = repr(linear.shape_class())
        known = self.answers.known.get(name)
        if known is None or not known.ratios.keys() >= set(names):
            if not is_time_left():
                return names[0]
            known = self.answers.add(name, measure(linear, ours, self.threads))
        return min(names, key=known.ratios.__getitem__)

    def _likely(self, linear: Linear, ours: OwnGemm | None) -> str:
        """What to use without a measurement: the same as for the nearest class that has one."""
        names = names_of(linear, ours)
        wanted, near = linear.shape_class(), list[tuple[float, str]]()
        for text, known in self.answers.known.items():
            its, choice = ast.literal_eval(text), choice_of(known.ratios)
            if its[3:] == wanted[3:] and choice in names:
                pairs = zip(wanted[:3], its[:3], strict=True)
                near.append((sum(abs(math.log2(a / b)) for a, b in pairs), choice))
        return min(near)[1] if near else usual_of(names)

    def ours(self, dtype: torch.dtype) -> OwnGemm | None:
        return own_gemm(self.store, dtype) if self.settings.ours else None


def own_gemm(store: Store, dtype: torch.dtype) -> OwnGemm | None:
    """Our own GEMM of a dtype, built or found; None where there is none for this processor."""
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    return loaded(lambda store, toolchain: load_gemm(store, toolchain, dtype), store, "GEMM")
