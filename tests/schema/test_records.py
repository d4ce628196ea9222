import copy
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest
import torch

from kvc.schema.records import DATACLASS, RecordType, named_values, record_type

ONES = np.ones((2, 3))


@dataclass
class Cache:
    k: object
    v: object


@dataclass
class Output(OrderedDict):
    """A dict with attributes, as transformers has them."""

    logits: object = None
    past: object = None

    def __post_init__(self):
        self.update((k, v) for k, v in vars(self).items() if v is not None)


Pair = namedtuple("Pair", "left right")


def made(kind, *values):
    fields = ("k", "v")[: len(values)]
    return RecordType(kind, "Cache", fields).made(values)


def test_types_of_records_are_seen():
    assert record_type(Cache(1, 2)) == RecordType("dataclass", "Cache", ("k", "v"))
    assert record_type(Pair(1, 2)) == RecordType(
        "namedtuple", "Pair", ("left", "right")
    )
    assert record_type(Output(1)) == RecordType("mapping", "Output", ("logits",))
    best = torch.ones(2, 2).max(1)
    assert record_type(best) == RecordType("namedtuple", "max", ("values", "indices"))
    for other in ((1,), [1], {"k": 1}, OrderedDict(k=1), 1, None, ONES, Cache):
        assert record_type(other) is None


def test_values_are_known_by_name():
    assert named_values(Pair(1, 2)) == {"left": 1, "right": 2}
    assert named_values(Cache(1, 2)) == named_values({"k": 1, "v": 2})
    assert named_values((1, 2)) is None


def test_a_made_named_tuple_is_a_tuple():
    first = made("namedtuple", 1, 2)
    assert first == (1, 2)
    assert (first.k, first[1], [*first]) == (1, 2, [1, 2])
    assert repr(first) == "Cache(k=1, v=2)"


def test_a_made_object_has_attributes_and_can_be_changed():
    first = made("dataclass", ONES, [ONES, {"a": ONES}])
    assert first == made("dataclass", ONES.copy(), [ONES.copy(), {"a": ONES.copy()}])
    assert first != made("dataclass", ONES + 1, first.v)
    assert first != made("dataclass", ONES)
    assert first != (ONES, 3)
    assert repr(made("dataclass", 1, 2)) == "Cache(k=1, v=2)"
    first.k = 4
    assert replace(first, v=5) == made("dataclass", 4, 5)


def test_a_made_mapping_has_items_attributes_and_places():
    first = made("mapping", 1, 2)
    assert first == {"k": 1, "v": 2}
    assert (first["k"], first.v, first[1]) == (1, 2, 2)
    assert repr(first) == "Cache(k=1, v=2)"
    with pytest.raises(AttributeError, match="Cache has no 'w'"):
        _ = first.w
    with pytest.raises(KeyError):
        _ = first["w"]


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "mapping"])
def test_made_records_are_copied_and_pickled(kind):
    first = made(kind, 1, "b")
    assert pickle.loads(pickle.dumps(first)) == first
    assert copy.deepcopy(first) == first
    assert record_type(first) == RecordType(kind, "Cache", ("k", "v"))


def test_a_type_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        RecordType("dataclass", "A", ()).name = "B"


def test_records_are_compared_whatever_their_fields_are_called():
    kind = RecordType(DATACLASS, "Sized", ("shape", "inner"))
    one, same, other = (kind.made([1, kind.made([n, 0])]) for n in (2, 2, 3))
    assert one == same
    assert one != other
