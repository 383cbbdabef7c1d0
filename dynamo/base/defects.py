"""What the compiler does about an error of its own."""

from __future__ import annotations

import warnings
from types import CodeType

from dynamo.base import counters
from dynamo.base.config import config
from dynamo.base.errors import InternalError
from dynamo.base.signals import is_of_signal


def internal_error(code: CodeType, error: Exception, warned: set[int]) -> None:
    """A defect of the compiler: one warning for each function, which then runs in eager.

    warned: ids of the code that has been warned about. Raises InternalError instead where errors
    are not suppressed; and the error where it is none of the compiler's.
    """
    if is_of_signal(error):
        raise error
    place = f"{code.co_filename}:{code.co_firstlineno} {code.co_name}"
    text = f"{place}: the compiler failed ({type(error).__name__}: {error})"
    if not config.suppress_errors:
        raise InternalError(text) from error
    counters.counters["internal_errors"][f"{type(error).__name__}: {error}"] += 1
    if id(code) not in warned:
        warned.add(id(code))
        warnings.warn(
            f"{text}; this function runs in eager. DYNAMO_SUPPRESS_ERRORS=0 shows the error.",
            stacklevel=3,
        )


def cache_defect(cache: str, what: str, failed: str, instead: str, defect: Exception) -> str:
    """Counts a defect of a cache and warns of it once; gives its text. failed, instead: parts of
    the sentence that says so. Errors: it, where errors are not suppressed."""
    if not config.suppress_errors or is_of_signal(defect):
        raise defect
    text = f"{type(defect).__name__}: {defect}"
    counters.counters["internal_errors"][f"{cache}, {what}: {text}"] += 1
    if counters.once((cache, what, type(defect).__name__)):
        warnings.warn(
            f"dynamo: {failed} ({text}); {instead}. This is a defect of dynamo; "
            "DYNAMO_SUPPRESS_ERRORS=0 raises it.", stacklevel=4)
    return text
