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
