"""`python -m tests.fuzz_tensors --count 3000 [--seed 0]`: random tensor programs on the default backend, against eager.

Programs that eager runs are compiled several in one function, so that one build serves them all, but for one of ten;
a function of several is built with less optimisation, which changes no bit of what it computes. Prints each difference
shrunk.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from unittest import mock

import torch

import dynamo
from dynamo.base import counters
from dynamo.store import toolchain
from tests.fuzz_tensors.compare import (
    Outcome,
    Raised,
    batch_difference,
    difference,
    eager_outcomes,
    taken_ties,
)
from tests.fuzz_tensors.generate import TABLES, generate
from tests.fuzz_tensors.program import Program, smaller
from tests.fuzzing import Fuzzer, Options

RANDOM = re.compile(r"rand|bernoulli|dropout|normal|uniform|exponential|multinomial|poisson|rrelu|cauchy|geometric")
ALONE = 10  # one of so many programs is compiled alone
SYMBOLIC = 3  # at most so many programs of symbolic sizes in one function: the time of a capture grows faster than they do
# The loops, their widths and the order of their sums are the same; a third of the time is the compiler's at most.
QUICK = {"-O3": ("-O1", "-ftree-vectorize", "-fvect-cost-model=dynamic")}


def generated(seed: int, rows: str) -> Program:
    with torch.device("cpu"):
        return generate(seed, rows)


def fits(program: Program) -> bool:
    """Whether the default device can run it: a GPU draws other numbers, and an index out of range is the
    end of its process."""
    if torch.get_default_device().type == "cpu":
        return True
    if RANDOM.search(program.source()):
        return False
    with torch.device("cpu"):
        return not any(map(raises, eager_outcomes(program)))


def raises(outcome: Outcome) -> bool:
    return any(isinstance(fact, Raised) for _, fact in outcome.facts)


def differs(program: Program, backend: str) -> str:
    dynamo.reset()
    return difference(program, lambda f: dynamo.compile(f, backend=backend, dynamic=program.dynamic))


def drawn(seed: int, options: Options) -> Program | None:
    program = generated(seed, options.rows)
    return program if fits(program) else None


def groups(programs: Sequence[Program], options: Options) -> Iterable[list[Program]]:
    """Those that go into one function: the state around them and what their sizes are like is the same."""
    found: dict[object, list[Program]] = defaultdict(list)
    for program in programs:
        if options.batch < 2 or not shares(program):
            yield [program]
            continue
        key = (program.around, program.dynamic, len(program.sizes))
        found[key].append(program)
        most = min(options.batch, SYMBOLIC) if program.dynamic or len(program.sizes) > 1 else options.batch
        if len(found[key]) == most:
            yield found.pop(key)
    yield from found.values()


def shares(program: Program) -> bool:
    """Whether it may stand beside others: one that raises ends them, one of other modes makes them run as captured."""
    if program.seed % ALONE == 0 or program.within[2] or RANDOM.search(program.source()):
        return False
    return not any(map(raises, outcomes(program)))


@functools.lru_cache(maxsize=500)
def outcomes(program: Program) -> list[Outcome]:
    return eager_outcomes(program)


def check_together(programs: Sequence[Program], options: Options) -> str | None:
    """None where something isn't compiled: that is to depend on one program."""
    dynamo.reset()
    counters.counters["not_compiled"].clear()
    wanted = [outcomes(program) for program in programs]
    flags = [new for flag in toolchain.BASE_FLAGS for new in QUICK.get(flag, (flag,))]
    with mock.patch.object(toolchain, "BASE_FLAGS", tuple(flags)):
        text = batch_difference(
            programs, wanted, lambda f: dynamo.compile(f, backend=options.backend, dynamic=programs[0].dynamic)
        )
    return None if counters.counters["not_compiled"] and not text else text


def kind(text: str) -> str:
    """What differs, without values and numbers."""
    return re.sub(r"v?\d+", "", ":".join(text.split(":")[:2]))


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where all tensors are; others than the CPU draw no random numbers")
    parser.add_argument("--rows", default="plain", choices=TABLES, help="what programs are made of")
    for name in TABLES:
        parser.add_argument(f"--{name}", action="store_const", dest="rows", const=name, help=f"--rows {name}")
    parser.add_argument("--batch", type=int, default=12, help="at most so many programs in one compiled function")


def prepare(options: Options) -> None:
    torch.set_default_device(options.device)
    torch.backends.cudnn.allow_tf32 = False


FUZZER = Fuzzer(
    __doc__, "inductor", drawn, differs, smaller, kind=kind, add=add,
    groups=groups, check_group=check_together, ties=taken_ties, prepare=prepare,
)  # fmt: skip
check = FUZZER.checked

if __name__ == "__main__":
    sys.exit(FUZZER.main())
