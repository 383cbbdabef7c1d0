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
