"""The `__dict__` of an object that the program also has as a dict."""

import pytest
import torch

import dynamo


class Box:
    pass


def writes_the_dict(x, box, held):
    held["v"] = 7
    return x * box.v, held is box.__dict__


def reads_before(x, box, held):
    x = x * box.v
    held["v"] = 7
    return x * box.v, len(held)


def writes_the_object(x, box, held):
    x = x * held["v"]
    box.v = 7
    return x * held["v"], held is box.__dict__, len(held)


def keeps_it_over_a_break(x, box, held):
    own = vars(box)
    dynamo.graph_break()
    own["v"] = 7
    own["w"] = 8
    return x * box.v, box.w


def gets_another(x, box, held):
    own = {"v": 5}
    box.__dict__ = own
    own["v"] = 7
    box.w = 8
    return x * box.v, own, box.__dict__ is own


PROGRAMS = [
    writes_the_dict, reads_before, writes_the_object, keeps_it_over_a_break, gets_another,
]


def run(f, is_own):
    box = Box()
    box.v = 1
    held = box.__dict__ if is_own else {"v": 1}
    tensor, *others = f(torch.ones(2), box, held)
    return tensor.tolist(), others, vars(box), held


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_changes_are_seen_by_both_names(program, order):
    compiled = dynamo.compile(program, backend="eager")
    for is_own in order:
        assert run(compiled, is_own) == run(program, is_own)


def test_equal_objects_have_dicts_of_their_own():
    class Equal(Box):
        def __eq__(self, other):
            return self.__dict__ == other.__dict__

    def f(x, left, right):
        own = left.__dict__, right.__dict__
        return x + 1, own[0] is own[1], own[0] is not own[1], own[0] is left.__dict__

    compiled = dynamo.compile(f, backend="eager")
    with dynamo.config.patch(suppress_errors=False):
        assert compiled(torch.ones(1), Equal(), Equal())[1:] == (False, True, True)


NUMBER = 1


def test_views_show_later_attributes():
    def f(x):
        box = Box()
        box.a = 1
        keys, items = box.__dict__.keys(), vars(box).items()
        box.b = 2
        found = [list(keys), len(items), "b" in keys]
        try:
            for name in box.__dict__:
                setattr(box, name + "z", x)
        except RuntimeError as error:
            found.append(str(error))
        return x + 1, found, list(keys), keys

    want = f(torch.ones(1))
    got = dynamo.compile(f, backend="eager")(torch.ones(1))
    assert got[1:3] == want[1:3] and list(got[3]) == list(want[3])


def test_names_of_a_module_by_its_dict():
    def f(x):
        names = globals()
        names["NUMBER"] = NUMBER + 1
        return x * NUMBER, names["NUMBER"], names is globals()

    try:
        tensor, *others = dynamo.compile(f, backend="eager")(torch.ones(1))
        assert tensor.item() == 2 and others == [2, True] and NUMBER == 2
    finally:
        globals()["NUMBER"] = 1


def test_a_slot_that_is_empty():
    class Slotted:
        __slots__ = ("a",)

    def f(x):
        try:
            del Slotted().a
        except AttributeError as error:
            return x + 1, str(error)

    assert dynamo.compile(f, backend="eager")(torch.ones(1))[1] == f(torch.ones(1))[1]


class Telling(dict):
    """Tells which of its methods run."""

    told: list

    def __getitem__(self, key):
        self.told.append(("getitem", key))
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self.told.append(("contains", key))
        return dict.__contains__(self, key)

    def __iter__(self):
        self.told.append("iter")
        return dict.__iter__(self)

    def __setitem__(self, key, value):
        self.told.append(("setitem", key))
        raise TypeError("read only")

    def get(self, key, default=None):
        self.told.append(("get", key))
        return default

    def setdefault(self, key, default=None):
        raise TypeError("read only")


def replaced(told):
    """An object whose dict is of a class of its own."""
    box = Box()
    box.__dict__ = type("Own", (Telling,), {"told": told})(v=1)
    return box


def itself(told):
    """An object that is its dict."""
    box = type("Own", (Telling,), {"told": told})(v=1)
    box.__dict__ = box
    return box


def error_of(call):
    try:
        return call()
    except TypeError as error:
        return str(error)


HELD = {
    "attribute": lambda box: (box.v, hasattr(box, "v"), hasattr(box, "w"), getattr(box, "w", 3)),
    "stored": lambda box: (setattr(box, "w", 4), box.w, delattr(box, "v"), hasattr(box, "v")),
    "class": lambda box: type(box.__dict__).__name__,
    "item": lambda box: box.__dict__["v"],
    "of vars": lambda box: vars(box)["v"],
    "is in": lambda box: ("v" in box.__dict__, "w" in box.__dict__),
    "get": lambda box: box.__dict__.get("v"),
    "setitem": lambda box: error_of(lambda: box.__dict__.__setitem__("v", 2)),
    "setdefault": lambda box: error_of(lambda: box.__dict__.setdefault("w", 2)),
    "names": lambda box: list(box.__dict__),
    "descriptor": lambda box: Box.__dict__["__dict__"].__get__(box)["v"] if type(box) is Box else 0,
    "made": lambda box: replaced([]).__dict__.get("v"),
}


@pytest.mark.parametrize("make", [replaced, itself])
@pytest.mark.parametrize("name", HELD)
def test_dicts_of_classes_of_their_own(make, name):
    def f(x, box):
        found = HELD[name](box)
        return x + 1, found, box.v if hasattr(box, "v") else None

    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        eager_told, told = [], []
        eager, box = make(eager_told), make(told)
        want = f(torch.ones(1), eager)
        got = compiled(torch.ones(1), box)
        assert got[1:] == want[1:] and told == eager_told
        assert dict.items(box.__dict__) == dict.items(eager.__dict__)
