"""Python functions that are traced in place of those of `heapq`: the heaps have the same order."""

from __future__ import annotations

import heapq
from typing import Any

from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar
from dynamo.symbolic.python.polyfills import polyfill

LONGEST = 2500  # a longer list is put in order in another succession, to use the processor's cache


def is_list(var: Var) -> bool:
    return isinstance(var, ListVar) and var.kind is list


def is_short_list(var: Var) -> bool:
    return isinstance(var, ListVar) and var.kind is list and len(var.items) <= LONGEST


def comes_first(heap: list[Any], one: int, other: int, largest: bool) -> bool:
    """Compares two items of the heap, whose size no comparison may change."""
    size = len(heap)
    found = bool(heap[other] < heap[one] if largest else heap[one] < heap[other])
    if size != len(heap):
        raise RuntimeError("list changed size during iteration")
    return found


def rise(heap: list[Any], place: int, start: int, largest: bool) -> None:
    """Moves an item towards `start` until its parent comes before it."""
    if place >= len(heap):
        raise IndexError("index out of range")
    while place > start:
        parent = (place - 1) // 2
        if not comes_first(heap, place, parent, largest):
            break
        heap[parent], heap[place] = heap[place], heap[parent]
        place = parent


def sink(heap: list[Any], start: int, largest: bool) -> None:
    """Moves an item to the end of the path of first children, and up again to its place."""
    place, size = start, len(heap)
    if place >= size:
        raise IndexError("index out of range")
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and not comes_first(heap, child, child + 1, largest):
            child += 1
        heap[place], heap[child] = heap[child], heap[place]
        place = child
    rise(heap, place, start, largest)


def order_all(heap: list[Any], largest: bool) -> None:
    for place in range(len(heap) // 2 - 1, -1, -1):
        sink(heap, place, largest)


def take(heap: list[Any], largest: bool) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    sink(heap, 0, largest)
    return first


def exchange(heap: list[Any], item: Any, largest: bool) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    sink(heap, 0, largest)
    return first


@polyfill(heapq.heapify, heap=is_short_list)
def heapify(heap: list[Any], /) -> None:
    order_all(heap, False)


@polyfill(heapq.heappush, heap=is_list)
def heappush(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    rise(heap, len(heap) - 1, 0, False)


@polyfill(heapq.heappop, heap=is_list)
def heappop(heap: list[Any], /) -> Any:
    return take(heap, False)


@polyfill(heapq.heapreplace, heap=is_list)
def heapreplace(heap: list[Any], item: Any, /) -> Any:
    return exchange(heap, item, False)


@polyfill(heapq.heappushpop, heap=is_list)
def heappushpop(heap: list[Any], item: Any, /) -> Any:
    if heap and heap[0] < item:
        return exchange(heap, item, False)
    return item


def of_largest(name: str) -> list[Any]:
    """What `heapq` has of that name for heaps whose first item is the largest."""
    return [vars(heapq)[each] for each in (name, f"_{name}") if each in vars(heapq)]


@polyfill(*of_largest("heapify_max"), heap=is_short_list)
def heapify_max(heap: list[Any], /) -> None:
    order_all(heap, True)


@polyfill(*of_largest("heappop_max"), heap=is_list)
def heappop_max(heap: list[Any], /) -> Any:
    return take(heap, True)


@polyfill(*of_largest("heapreplace_max"), heap=is_list)
def heapreplace_max(heap: list[Any], item: Any, /) -> Any:
    return exchange(heap, item, True)
