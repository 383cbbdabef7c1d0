"""`pickle.dumps` of plain data, which libraries take as a key of arguments."""

from __future__ import annotations

import pickle
from typing import Any

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var

NUMBERS = (int, float, bool, type(None))
TEXTS = (str, bytes)


@rule(pickle.dumps, Var)
def dumps(tx: Frame, var: Var) -> Var | None:
    """Folded for numbers and texts, and a dict, list or tuple of them.

    A text that comes twice is left to plain Python: how it is written depends on whether both are
    one object.
    """
    kind = var.python_type()
    if kind is dict:
        pairs = [pair.unpack(tx) for pair in var.call_method(tx, "items", [], {}).unpack(tx)]
        parts = [part for pair in pairs for part in pair]
    elif kind in (list, tuple):
        parts = var.unpack(tx)
    else:
        parts = [var]
    if not all(part.is_constant() for part in parts):
        return None
    values: list[Any] = [part.as_constant() for part in parts]
    texts = [value for value in values if type(value) in TEXTS]
    if len(set(texts)) < len(texts) or any(type(v) not in NUMBERS + TEXTS for v in values):
        return None
    if kind is dict:
        whole: Any = dict(zip(values[::2], values[1::2], strict=True))
    else:
        whole = kind(values) if kind in (list, tuple) else values[0]
    return tx.trace.constant(pickle.dumps(whole))
