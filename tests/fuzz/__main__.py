"""`python -m tests.fuzz --count 10000 [--seed 0]`: fuzzes the compiler, prints each difference shrunk.

A difference is between running a random program eagerly and under `dynamo.compile(f, backend="eager")`;
DYNAMO_SUPPRESS_ERRORS is off, so that internal errors count too.
"""

from __future__ import annotations

import sys

import dynamo
from tests.fuzz.compare import differs
from tests.fuzz.program import Program, SeedChooser, generate
from tests.fuzz.wide import generate_wide
from tests.fuzzing import Fuzzer, Options


def differs_from_eager(program: Program, backend: str) -> str:
    dynamo.reset()
    return differs(program, lambda f: dynamo.compile(f, backend=backend), dynamo.graph_break)


def generated(seed: int, options: Options) -> Program:
    return (generate_wide if options.wide else generate)(SeedChooser(seed))


FUZZER = Fuzzer(
    __doc__, "eager", generated, differs_from_eager, Program.smaller, Program.source,
    add=lambda parser: parser.add_argument("--wide", action="store_true", help="draw from the constructs of wide.py, too"),
)  # fmt: skip
check = FUZZER.checked

if __name__ == "__main__":
    sys.exit(FUZZER.main())
