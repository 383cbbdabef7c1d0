"""`python -m tests.fuzz_arguments --seconds 600 [--seed 0] [--backend inductor]`: arguments whose making changes.

Random programs are called again and again with arguments of another making, after changes of a module and of former
results, under other states of torch, in eager and compiled. Prints each difference shrunk.
"""

from __future__ import annotations

import sys

import dynamo
from tests.fuzz_arguments.history import History, difference, generate, smaller
from tests.fuzzing import Fuzzer


def differs(history: History, backend: str) -> str:
    return difference(history, lambda f: dynamo.compile(f, backend=backend, dynamic=history.dynamic))


FUZZER = Fuzzer(__doc__, "inductor", lambda seed, options: generate(seed), differs, smaller)
check = FUZZER.checked

if __name__ == "__main__":
    sys.exit(FUZZER.main())
