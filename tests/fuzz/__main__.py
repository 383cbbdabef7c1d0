"""`python -m tests.fuzz --count 10000 [--seed 0]`: fuzzes the compiler, prints each difference shrunk.

A difference is between running a random program eagerly and under `dynamo.compile(f, backend="eager")`;
DYNAMO_SUPPRESS_ERRORS is off, so that internal errors count too.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback

import dynamo
from tests.common import fuzz_parser
from tests.fuzz.compare import differs, shrink
from tests.fuzz.program import Program, SeedChooser, generate
from tests.fuzz.wide import generate_wide

FROZEN_EACH = 20  # programs


def check(program: Program, backend: str) -> str | None:
    dynamo.reset()
    try:
        return differs(program, lambda f: dynamo.compile(f, backend=backend), dynamo.graph_break)
    except Exception:
        return "internal error\n" + traceback.format_exc(limit=-4)


def main() -> int:
    parser = fuzz_parser(__doc__, "eager")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--wide", action="store_true", help="draw from the constructs of wide.py, too")
    parser.add_argument("--stop", type=int, default=5, help="stop after this many differences")
    options = parser.parse_args()
    found, done, start = 0, 0, time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        if found >= options.stop or time.perf_counter() - start > options.seconds:
            break
        if done % FROZEN_EACH == 1:  # what is there now stays: the collections that each program asks for need not look at it
            gc.freeze()
        done += 1
        program = (generate_wide if options.wide else generate)(SeedChooser(seed))
        difference = check(program, options.backend)
        if difference is None:
            continue
        found += 1
        print(f"seed {seed} differs, is shrunk", flush=True)
        small = shrink(program, lambda p: check(p, options.backend) is not None)
        print(f"=== seed {seed} ({small.size()} statements)\n{small.source()}\n{check(small, options.backend)}\n", flush=True)
    print(f"{done} programs, {found} differences, {time.perf_counter() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
