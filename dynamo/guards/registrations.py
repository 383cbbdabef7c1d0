"""How often a class turned out to belong to an abstract one against which it was tested before.

In: pairs of classes of which a trace assumes that one does not belong to the other. Out: a number
for guards, which changes when a registration makes one of them belong. Python's own count of
registrations changes with each of them, and libraries register classes when they are imported:
what was compiled before would be compiled again.
"""

from __future__ import annotations

import abc
import weakref


class Registrations:
    """Call it for the number.

    >>> class Shape(abc.ABC): ...
    >>> class Round: ...
    >>> turned = Registrations()
    >>> turned.deny(Round, Shape)
    >>> before = turned()
    >>> _ = Shape.register(Round)
    >>> turned() - before
    1
    """

    def __init__(self) -> None:
        self._token = abc.get_cache_token()
        self._turned = 0
        self._denied: dict[tuple[int, int], tuple[weakref.ref[type], weakref.ref[type]]] = {}

    def deny(self, cls: type, abstract: type) -> None:
        """Some trace assumes that the class does not belong to the abstract one."""
        self()  # what happened until now does not concern it
        self._denied[id(cls), id(abstract)] = weakref.ref(cls), weakref.ref(abstract)

    def __call__(self) -> int:
        token = abc.get_cache_token()
        if token != self._token:
            self._token = token
            self._ask_again()
        return self._turned

    def _ask_again(self) -> None:
        for key, (cls_ref, abstract_ref) in list(self._denied.items()):
            cls, abstract = cls_ref(), abstract_ref()
            if cls is None or abstract is None:
                del self._denied[key]
            elif _belongs(cls, abstract):
                del self._denied[key]
                self._turned += 1


def _belongs(cls: type, abstract: type) -> bool:
    """Also where the test raises: what was compiled is then compiled again."""
    try:
        return issubclass(cls, abstract)
    except Exception:
        return True


REGISTRATIONS = Registrations()
