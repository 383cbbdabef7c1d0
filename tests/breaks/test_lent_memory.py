"""What owns memory that others read by its address lives as long as in eager."""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def of_a_local_tensor(x: torch.Tensor) -> Any:
    source, target = x * 3, torch.zeros(1000)
    ctypes.memmove(target.data_ptr(), source.data_ptr(), 4000)
    return target.sum().item()


def address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def told_by_a_function(x: torch.Tensor) -> Any:
    source, target = x * 3, torch.zeros(1000)
    place = address(source)
    other = torch.full((1000,), 7.0)
    dynamo.graph_break()
    ctypes.memmove(address(target), place, 4000)
    return target.sum() + other[0] * 0


def of_an_array(x: torch.Tensor) -> Any:
    place, count = array.array("i", [7, 8, 9]), 3
    start, count = place.buffer_info()
    others = [array.array("i", [0, 0, 0]) for _ in range(4)]
    return ctypes.string_at(start, 4 * count), len(others)


def of_a_numpy_array(x: torch.Tensor) -> Any:
    source, target = x.numpy() * 3, torch.zeros(1000)
    start = source.ctypes.data
    ctypes.memmove(target.data_ptr(), start, 4000)
    return target.sum().item()


def of_a_ctypes_array(x: torch.Tensor) -> Any:
    numbers = (ctypes.c_int * 3)(42, 17, 2)
    pointer = ctypes.cast(ctypes.c_void_p(ctypes.addressof(numbers)), ctypes.POINTER(ctypes.c_int))
    return [pointer[i] for i in range(3)]


def of_a_string_buffer(x: torch.Tensor) -> Any:
    buffer = ctypes.create_string_buffer(b"foo")
    copy = (ctypes.c_char * 3).from_address(ctypes.addressof(buffer))
    return copy[:], copy.value


def in_a_list(x: torch.Tensor) -> Any:
    kept = [ctypes.c_int(99)]
    start = ctypes.addressof(kept[0])
    del kept[1:]
    return ctypes.c_int.from_address(start).value


def resized(x: torch.Tensor) -> Any:
    data = bytearray(b"abc")
    view = memoryview(data)  # noqa: F841
    try:
        data.append(5)
    except BufferError as error:
        return str(error)
    return "no error"


def resized_behind_the_view(x: torch.Tensor) -> Any:
    data = bytearray(b"abc")
    view: Any = memoryview(data)
    sys.getsizeof(view)
    view = None
    data.append(5)
    return data, view


def closed_map(x: torch.Tensor) -> Any:
    area = mmap.mmap(-1, 10)
    place = ctypes.addressof(ctypes.c_char.from_buffer(area))
    area[0:3] = b"abc"
    return ctypes.string_at(place, 3)


FUNCTIONS = [of_a_local_tensor, told_by_a_function, of_an_array, of_a_numpy_array, of_a_ctypes_array,
             of_a_string_buffer, in_a_list, resized, resized_behind_the_view, closed_map]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_it_is_read_while_eager_keeps_it(function: Callable[[torch.Tensor], Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    x = torch.ones(1000)
    for _ in range(3):
        assert compiled(x) == function(x)
