"""`python -m tests.fuzz_arguments --seconds 600 [--seed 0] [--backend inductor]`: arguments whose making changes.

Random programs are called again and again with arguments of another making, after changes of a module and of former
results, under other states of torch, in eager and compiled. Prints each difference shrunk.
"""

from __future__ import annotations

import sys
import time
import warnings

import dynamo
from dynamo.base.config import config
from tests.common import fuzz_parser
from tests.fuzz_arguments.history import History, difference, generate, smaller


def check(history: History, backend: str) -> str:
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return difference(history, lambda f: dynamo.compile(f, backend=backend, dynamic=history.dynamic))
        except Exception as error:
            return f"the check raises {type(error).__name__}: {str(error)[:500]}"


def shrunk(history: History, backend: str) -> History:
    """The smallest history found that differs too."""
    while found := next((h for h in smaller(history) if check(h, backend)), None):
        history = found
    return history


def report(history: History, backend: str) -> None:
    small = shrunk(history, backend)
    print(f"=== seed {history.seed}\n{small}\n{check(small, backend)}\n", flush=True)


def main() -> int:
    parser = fuzz_parser(__doc__, "inductor", 60)
    parser.add_argument("--one", action="store_true", help="only this seed")
    options = parser.parse_args()
    if options.one:
        report(generate(options.seed), options.backend)
        return 0
    seed, wrong, end = options.seed, 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        history = generate(seed)
        if check(history, options.backend):
            wrong += 1
            report(history, options.backend)
        seed += 1
    print(f"{seed - options.seed} histories, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
