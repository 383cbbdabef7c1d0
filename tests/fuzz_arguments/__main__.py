"""`python -m tests.fuzz_arguments --seconds 600 [--seed 0] [--backend inductor]`: arguments whose making changes.

Random programs are called again and again with arguments of another making, after changes of a module and of former
results, under other states of torch, in eager and compiled. Prints each difference shrunk.
"""

from __future__ import annotations

import sys

import dynamo
from tests.common import fuzz_for_seconds, told_of_check
from tests.fuzz_arguments.history import History, difference, generate, smaller


def check(history: History, backend: str) -> str:
    return told_of_check(lambda: difference(
        history, lambda f: dynamo.compile(f, backend=backend, dynamic=history.dynamic)))


if __name__ == "__main__":
    sys.exit(fuzz_for_seconds(__doc__, "inductor", lambda seed, backend: generate(seed), check, smaller))
