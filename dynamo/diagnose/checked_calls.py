"""`verify(f, ...)` and `options={"verify": True}`: compiled code that is compared with eager.

In: a function or module, with its options. Out: a record of one comparison, or a callable that
compares at each call before it runs. The comparison itself is in `dynamo/diagnose/`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dynamo import api, hook
from dynamo.base.words import described
from dynamo.diagnose.graphs import Tap
from dynamo.diagnose.verification import Verification, Verifier
from dynamo.options import CompileOptions, check_options


def verify(f: Any, /, *args: Any, **kwargs: Any) -> Verification:
    """Runs `f(*args, **kwargs)` in eager, in eager in float64, and compiled, and compares all.

    f: a function, method or nn.Module; a compiled one is compared with what it was compiled from,
    by the code that it has. Compared are results, gradients by random cotangents, effects on
    arguments and on what the function reaches, aliases, strides and dtypes. Each run has fresh
    copies of the arguments and the same random numbers; nothing is changed behind the last.
    Returns a record: `ok`, `differences`, and for a difference the first operator that differs and
    its line. Errors: TypeError.

    >>> verify(lambda x: x + 1, torch.ones(2)).ok
    True
    """
    if not callable(f) or isinstance(f, type):
        raise TypeError(f"verify takes a function, a method or an nn.Module, not {described(f)}")
    policy = getattr(type(f), "_policy", None) or getattr(f, "_policy", None)
    original = api.run(f)
    if policy is None:
        settings = check_options(None, None, None, False, None, None, None)
        return _verifier(original, settings).check(_compiled(original, settings), args, kwargs)
    settings = policy.options
    tap = settings.backend if isinstance(settings.backend, Tap) else None
    if tap is not None:
        settings = replace(settings, backend=tap.backend, options=tap.extra.get("options", {}))
    return _verifier(original, settings).check(f, args, kwargs, tap or Tap(settings.backend))


def _compiled(original: Any, settings: CompileOptions) -> Any:
    return api.compile_by(original, replace(settings, background=False))


def _verifier(original: Any, settings: CompileOptions) -> Verifier:
    return Verifier(original, original, lambda options: _compiled(original, options), settings)


def checked_calls(model: Any, settings: CompileOptions) -> Any:
    """The model compiled, with a comparison before each call: VerifyError where it would differ."""
    settings = replace(settings, verify=False)
    extra: dict[str, Any] = {} if settings.mode is None else {"mode": settings.mode}
    if settings.options:
        extra["options"] = dict(settings.options)
    tap = Tap(settings.backend, extra)
    compiled = _compiled(model, replace(settings, backend=tap, mode=None, options={}))
    verifier = _verifier(api.run(model), settings)
    if isinstance(model, torch.nn.Module):
        return api.module_twin(model, _method(verifier, compiled, tap), type(compiled)._policy)

    def call(*args: Any, **kwargs: Any) -> Any:
        verifier.require(compiled, args, kwargs, tap)
        return compiled(*args, **kwargs)

    result = hook.Compiled(None, call)
    result.__dict__.update(compiled.__dict__)
    return result


def _method(verifier: Verifier, compiled: Any, tap: Tap) -> hook.Compiled:
    def call(*args: Any, **kwargs: Any) -> Any:
        verifier.require(compiled, args, kwargs, tap)
        return compiled(*args, **kwargs)

    return hook.Compiled(None, call)
