"""What the interpreter does for patterns of `match`, as Python that is traced in its place."""

from __future__ import annotations

from typing import Any

MISSING = object()


def values_of_keys(subject: Any, keys: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The mapping's values of the pattern's keys; None where it lacks one."""
    if not keys:
        return ()
    get = subject.get
    seen: set[Any] = set()
    values = []
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        value = get(key, MISSING)
        if value is MISSING:
            return None
        values.append(value)
    return tuple(values)


def parts_of_class(
    subject: Any, cls: Any, count: int, names: tuple[str, ...], matches_self: bool
) -> tuple[Any, ...] | None:
    """What the first `count` patterns, and those with names, are matched with; None where the
    subject is no instance or lacks an attribute. matches_self: a class such as `int`, whose only
    pattern without a name takes the subject itself, where it has no `__match_args__`."""
    if not isinstance(subject, cls):
        return None
    seen: set[str] = set()
    parts = []
    if count:
        places = places_of(cls)
        takes_self = places is None and matches_self
        check_count(cls, 1 if takes_self else len(places or ()), count)
        if takes_self:
            parts.append(subject)
        for name in () if takes_self else places[:count]:
            if type(name) is not str:
                raise TypeError(
                    f"__match_args__ elements must be strings (got {type(name).__name__})")
            value = attribute(subject, cls, name, seen)
            if value is MISSING:
                return None
            parts.append(value)
    for name in names:
        value = attribute(subject, cls, name, seen)
        if value is MISSING:
            return None
        parts.append(value)
    return tuple(parts)


def places_of(cls: Any) -> Any:
    """The attributes that patterns without a name stand for; None where the class says nothing."""
    try:
        places = cls.__match_args__
    except AttributeError:
        return None
    if type(places) is not tuple:
        raise TypeError(
            f"{cls.__name__}.__match_args__ must be a tuple (got {type(places).__name__})")
    return places


def check_count(cls: Any, allowed: int, count: int) -> None:
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        raise TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} "
                        f"({count} given)")


def attribute(subject: Any, cls: Any, name: str, seen: set[str]) -> Any:
    """The subject's attribute for one pattern, or `MISSING`."""
    if name in seen:
        raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
    seen.add(name)
    try:
        return getattr(subject, name)
    except AttributeError:
        return MISSING
