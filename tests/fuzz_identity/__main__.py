"""`python -m tests.fuzz_identity --seconds 600 [--seed 0] [--backend eager]`: which object a tensor is, which memory it has.

Random programs of views, writes, stores and questions, with breaks between, are called with arguments that share
memory in changing ways. Prints each difference shrunk.
"""

from __future__ import annotations

import sys

import dynamo
from tests.fuzz_identity.compare import difference, generate
from tests.fuzz_identity.program import Program, smaller
from tests.fuzzing import Fuzzer, Options


def differs(program: Program, backend: str) -> str:
    return difference(program, lambda f: dynamo.compile(f, backend=backend), exact=backend == "eager")


def generated(seed: int, options: Options) -> Program:
    return generate(seed, options.backend == "eager")


FUZZER = Fuzzer(__doc__, "eager", generated, differs, smaller)
check = FUZZER.checked

if __name__ == "__main__":
    sys.exit(FUZZER.main())
