"""`python -m tests.fuzz_identity --seconds 600 [--seed 0] [--backend eager]`: which object a tensor is, which memory it has.

Random programs of views, writes, stores and questions, with breaks between, are called with arguments that share
memory in changing ways. Prints each difference shrunk.
"""

from __future__ import annotations

import sys

import dynamo
from tests.common import fuzz_for_seconds, told_of_check
from tests.fuzz_identity.compare import difference, generate
from tests.fuzz_identity.program import Program, smaller


def check(program: Program, backend: str) -> str:
    exact = backend == "eager"
    return told_of_check(lambda: difference(program, lambda f: dynamo.compile(f, backend=backend), exact=exact))


if __name__ == "__main__":
    sys.exit(fuzz_for_seconds(__doc__, "eager", lambda seed, backend: generate(seed, backend == "eager"), check, smaller))
