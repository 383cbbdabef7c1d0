"""`python -m tests.fuzz_tensors --count 3000 [--seed 0]`: random tensor programs on the default backend, against eager.

Prints each difference shrunk. Programs run in child processes, so that a crash is a difference, too.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator

import torch

import dynamo
from dynamo.base.config import config
from tests.common import fuzz_parser
from tests.fuzz_tensors.compare import Raised, difference, function_of, run
from tests.fuzz_tensors.generate import generate
from tests.fuzz_tensors.program import Program, smaller

BATCH = 50
RANDOM = re.compile(r"rand|bernoulli|dropout|normal|uniform|exponential|multinomial|poisson|rrelu|cauchy|geometric")


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
        outcomes = [run(program, function_of(program.source()), call) for call in range(2 * len(program.sizes))]
    return not any(isinstance(fact, Raised) for outcome in outcomes for _, fact in outcome.facts)


def check(program: Program, backend: str = "inductor") -> str:
    dynamo.reset()
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return difference(program, lambda f: dynamo.compile(f, backend=backend, dynamic=program.dynamic))


def kind(text: str) -> str:
    """What differs, without values and numbers."""
    return re.sub(r"v?\d+", "", ":".join(text.split(":")[:2]))


def shrunk(program: Program, text: str, backend: str) -> Program:
    """The smallest program found that differs in the same."""
    while True:
        found = next((p for p in smaller(program) if kind(check(p, backend)) == kind(text)), None)
        if found is None:
            return program
        program = found


def report(seed: int, program: Program, backend: str) -> None:
    text = check(program, backend)
    small = shrunk(program, text, backend) if text else program
    print(f"=== seed {seed}: {text}\n{small}\n{check(small, backend)}\n", flush=True)


def run_all(seeds: range, backend: str, rows: str, writing: int) -> None:
    for seed in seeds:
        program = generated(seed, rows)
        os.write(writing, b"?")
        wrong = fits(program) and bool(check(program, backend))
        os.write(writing, b"1" if wrong else b"0")
        if wrong:
            report(seed, program, backend)


def in_child(seeds: range, backend: str, rows: str) -> Iterator[tuple[int, int]]:
    """(seed, 0 or 1 where it differs, or the signal that ended it), from a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_all(seeds, backend, rows, writing)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    seed = seeds.start
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while mark := pipe.read(1):
            if mark != b"?":
                yield seed, int(mark)
                seed += 1
    _, status = os.waitpid(child, 0)
    if seed < seeds.stop:
        yield seed, status or -1


def main() -> int:
    parser = fuzz_parser(__doc__, "inductor")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--device", default="cpu", help="where all tensors are; others than the CPU draw no random numbers")
    parser.add_argument(
        "--nested", action="store_const", dest="rows", const="nested", default="plain",
        help="also transforms, gradients inside, `out=`, modules in training",
    )
    parser.add_argument(
        "--windows", action="store_const", dest="rows", const="windows",
        help="parts of tensors of open sizes, each with several sizes",
    )
    parser.add_argument(
        "--writes", action="store_const", dest="rows", const="writes",
        help="writes through views, inputs that share memory, tensors made piece by piece",
    )
    parser.add_argument(
        "--decisions", action="store_const", dest="rows", const="decisions",
        help="computed values that something is decided by: comparisons, places, sorting, pooling, rounding",
    )
    parser.add_argument("--one", action="store_true", help="run the seed's program in this process")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    torch.backends.cudnn.allow_tf32 = False
    if options.one:
        report(options.seed, generated(options.seed, options.rows), options.backend)
        return 0
    at, end, wrong, start = options.seed, options.seed + options.count, 0, time.perf_counter()
    while at < end and time.perf_counter() - start < options.seconds:
        print(f"seed {at}", file=sys.stderr, flush=True)
        for seed, status in in_child(range(at, min(end, at + BATCH)), options.backend, options.rows):
            wrong += status != 0
            if status not in (0, 1):
                print(f"=== seed {seed}: the process ended with status {status}\n{generated(seed, options.rows)}\n", flush=True)
            at = seed + 1
    print(f"{at - options.seed} programs, {wrong} differ, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
