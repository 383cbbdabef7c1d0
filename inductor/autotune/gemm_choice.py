"""Which candidate computes a matrix product: answers by shape class, kept in the cache folder.

In: a `Linear`. Out: the name of what computes it. Classes that are not known, or not well, are
measured (`gemm_trials.py`), as long as there is time.
"""

from __future__ import annotations

import ast
import math
import os
from dataclasses import dataclass

import torch

from dynamo.base import logs
from dynamo.store.content import Store, make_key
from dynamo.store.processor import ONEDNN, OURS, processor
from dynamo.store.toolchain import find_toolchain
from inductor.autotune.gemm_trials import margins, measure, names_of, usual_of
from inductor.autotune.linear import Linear
from inductor.autotune.trials import is_time_left
from inductor.config import OWN, config
from inductor.kernels.cpu.gemm import PRODUCT_NAME
from inductor.kernels.cpu.gemm_libraries import Product, load_product
from inductor.kernels.cpu.half_gemm import HALF_NAME
from inductor.runtime.build import BuildError

# What is narrow is measured again in so many later processes.
NARROW, MOST_MEASUREMENTS = 1.1, 3
# Below, our own product is not worth building its library.
FEWEST_OPERATIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What was measured for a class: how long each candidate takes against ATen's product (the mean
    of logarithms over `measurements`), and the last process that measured."""

    ratios: dict[str, float]
    measurements: int
    process: int

    def choice(self) -> str:
        """The usual one unless another one is clearly faster. Of frozen weights, that is our own,
        without a copy if it can, for it takes in what follows; else oneDNN's."""
        usual = usual_of(self.ratios)
        needed = margins(self.ratios)
        over = {name: self.ratios[name] - self.ratios[usual] - needed[name] for name in needed}
        best = min(over, key=over.__getitem__, default=usual)
        return best if over and over[best] < 0 else usual

    def is_narrow(self) -> bool:
        """Whether another measurement might change the choice."""
        chosen = self.ratios[self.choice()]
        return any(
            name != self.choice() and abs(ratio - chosen) < math.log(NARROW)
            for name, ratio in self.ratios.items()
        )

    def joined(self, other: Answer) -> Answer:
        """Both together; of the same candidates."""
        if self.ratios.keys() != other.ratios.keys():
            return other
        count = self.measurements + other.measurements
        ratios = {
            name: (ratio * self.measurements + other.ratios[name] * other.measurements) / count
            for name, ratio in self.ratios.items()
        }
        return Answer(ratios, count, other.process)


class Chooser:
    """Answers by shape class; measures those that the cache does not know, or not well."""

    def __init__(self, store: Store, threads: int, with_ours: bool = True) -> None:
        self.store = store
        self.threads = threads
        self.with_ours = with_ours
        self.key = make_key(
            "products",
            {
                "isa": processor().text,
                "torch": torch.__version__,
                "threads": str(threads),
                "ours": f"{PRODUCT_NAME} {HALF_NAME}" if with_ours else "",
                "answers": "ratios of all threads",
            },
        )
        read = store.values(self.key) or {}
        self.answers = {name: Answer(*values) for name, values in read.items()}
        self.measured = False

    def fastest(self, linear: Linear) -> str:
        """A key of `REWRITES` (`library_kernels.py`); after "ours" the library is loaded."""
        if config.library_kernels == OWN:
            return self._fastest_own(linear)
        said = processor().fastest
        if said and config.library_kernels == "measure":
            return self._by(said, linear)
        name = repr(linear.shape_class())
        known = self.answers.get(name)
        if config.library_kernels != "measure":
            if known is None:
                return "aten"
        elif known is None or self._is_worth_another(known) and is_time_left():
            worth = linear.m * linear.n * linear.k >= FEWEST_OPERATIONS
            ours = self.ours(linear.dtype) if worth else None
            if linear.turned and ours is None:
                return "aten"
            if not is_time_left():
                return self._likely(linear, ours)
            found = Answer(measure(linear, ours, self.threads), 1, os.getpid())
            known = self.answers[name] = known.joined(found) if known is not None else found
            self.measured = True
        answer = known.choice()
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
        known = self.answers.get(name)
        if known is None or not known.ratios.keys() >= set(names):
            if not is_time_left():
                return names[0]
            known = self.answers[name] = Answer(
                measure(linear, ours, self.threads), 1, os.getpid())
            self.measured = True
        return min(names, key=known.ratios.__getitem__)

    def _likely(self, linear: Linear, ours: Product | None) -> str:
        """What to use without a measurement: the same as for the nearest class that has one."""
        names = names_of(linear, ours)
        wanted, near = linear.shape_class(), list[tuple[float, str]]()
        for text, known in self.answers.items():
            its, choice = ast.literal_eval(text), known.choice()
            if its[3:] == wanted[3:] and choice in names:
                away = sum(abs(math.log2(a / b)) for a, b in zip(wanted[:3], its[:3], strict=True))
                near.append((away, choice))
        return min(near)[1] if near else usual_of(names)

    def _is_worth_another(self, known: Answer) -> bool:
        other_process = known.process != os.getpid()
        return other_process and known.measurements < MOST_MEASUREMENTS and known.is_narrow()

    def ours(self, dtype: torch.dtype) -> Product | None:
        return own_product(self.store, dtype) if self.with_ours else None

    def save(self) -> None:
        if self.measured:
            rows = {
                name: (known.ratios, known.measurements, known.process)
                for name, known in self.answers.items()
            }
            self.store.keep_values(self.key, rows)


def own_product(store: Store, dtype: torch.dtype) -> Product | None:
    """Our own product of a dtype, built or found; None where there is none for this processor."""
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    toolchain = find_toolchain(store)
    if isinstance(toolchain, str):
        return None
    try:
        return load_product(store, toolchain, dtype)
    except BuildError as error:
        why = str(error)
        logs.log("inductor").emit(lambda: f"there is no product of our own: {why}")
        return None
