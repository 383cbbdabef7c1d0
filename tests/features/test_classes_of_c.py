"""Classes that C makes or holds: what can't be changed, and metaclasses with a maker of their own."""

from __future__ import annotations

import array
import ctypes
import hashlib
import itertools
import queue
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def store_in_a_class() -> Any:
    try:
        itertools.accumulate.level = 1  # type: ignore[attr-defined]
    except TypeError as error:
        return str(error)


def delete_in_a_class() -> Any:
    try:
        del itertools.accumulate.send  # type: ignore[attr-defined]
    except (TypeError, AttributeError) as error:
        return repr(error)


def odd_fields() -> Any:
    try:
        class Fields(ctypes.Structure):
            _fields_ = [("a", ctypes.c_char_p, 1)]
    except TypeError as error:
        return str(error)
    return Fields


def fields_that_are_missing() -> Any:
    try:
        class Fields(ctypes.Structure):
            _fields_: Any = []
            _anonymous_ = ["x"]
            x = 42
    except AttributeError as error:
        return str(error)
    return Fields


def no_length() -> Any:
    try:
        class Numbers(ctypes.Array):
            _type_ = ctypes.c_int
    except AttributeError as error:
        return str(error)
    return Numbers


def structure() -> Any:
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]

    return Pair(3, 4).b, type(Pair).__name__, Pair.__bases__, ctypes.sizeof(Pair)


def no_pickles() -> Any:
    errors = []
    for make in (threading.Lock, threading.RLock, hashlib.md5, queue.SimpleQueue, lambda: struct.Struct("i")):
        for protocol in (2, 4):
            try:
                made: Any = make().__reduce_ex__(protocol)
            except TypeError as error:
                made = str(error)
            errors.append(made)
    try:
        return errors, object.__reduce_ex__(array.array("i"), 2)
    except TypeError as error:
        return errors, str(error)


FUNCTIONS = [store_in_a_class, delete_in_a_class, odd_fields, fields_that_are_missing, no_length, structure, no_pickles]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_as_in_python(function: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, function(), x * 2

    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        first, found, last = compiled(torch.ones(2))
        assert found == function()
        assert torch.equal(first, torch.full((2,), 2.0)) and torch.equal(last, first)
