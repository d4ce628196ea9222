"""Caches that the caller owns: inputs that a method writes into, seen in the IR."""

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.ingest import import_program
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError

X, CACHE, SLOTS = torch.ones(1, 2, 4), torch.zeros(1, 6, 4), torch.tensor([1, 3])
LENGTH = {"cache": {1: Dim("slots", 2, 32)}}


class Writes(nn.Module):
    """Writes into what it is given."""

    def once(self, x, cache, slots):
        cache.index_copy_(1, slots, x)
        return cache.sum(1)

    def twice(self, x, cache, slots):
        cache.index_copy_(1, slots, x)
        cache.mul_(2)
        return cache.sum(1)

    def returned(self, x, cache, slots):
        cache.index_copy_(1, slots, x)
        return cache

    def part_returned(self, x, cache, slots):
        cache.index_copy_(1, slots, x)
        return cache[:, 1:]

    def nested(self, x, caches):
        for pair in caches:
            pair["k"].add_(x)
        return caches[0]["k"] + caches[0]["v"]

    def nothing(self, x, cache):
        cache.add_(x)

    def through_view(self, x, cache):
        cache[:, 2:4] = x
        return x * 2

    def zeroed(self, cache):
        cache.zero_()

    def other(self, x, y):
        x.add_(1)
        return y * 1

    def reshaped(self, x):
        x.unsqueeze_(0)
        return x * 1

    def resized(self, x):
        x.resize_(2, 2)
        return x * 1

    def replaced(self, x, cache):
        cache.data = x * 2
        return x * 1

    def with_past(self, x, cache, past):
        cache.add_(x)
        return cache * 1, torch.cat([past, x], 1)


def imported(name, *args, dynamic=None, carry=None):
    method = Method(name, args, dynamic=dynamic or {}, carry=carry or {})
    return import_program(Writes(), (capture(Writes(), method),)).methods[0]


def written(method):
    return [name for _, name in method.input_out]


def test_an_input_that_is_written_is_no_state_but_the_callers():
    method = imported("once", X, CACHE, SLOTS)
    ((new, name),) = method.input_out
    assert name == "cache"
    assert method.nodes[0].op == "aten::index_copy"
    assert method.nodes[0].outputs == (new,)
    assert method.input_names == ("x", "cache", "slots")
    assert (method.state_in, method.state_out) == ((), ())


def test_two_writes_are_one_new_value():
    method = imported("twice", X, CACHE, SLOTS)
    ((new, name),) = method.input_out
    assert name == "cache"
    assert method.nodes[1].outputs == (new,)


def test_what_is_written_may_be_returned_too():
    method = imported("returned", X, CACHE, SLOTS)
    assert written(method) == ["cache"]
    assert method.outputs == (method.input_out[0][0],)


def test_a_view_of_what_is_written_may_be_returned_too():
    method = imported("part_returned", X, CACHE, SLOTS)
    assert written(method) == ["cache"]
    assert str(method.outputs[0].type) == "float32[1, 5, 4]"


def test_inputs_in_containers_are_named_by_their_paths():
    caches = [{"k": X.clone(), "v": X.clone()}, {"k": X.clone(), "v": X.clone()}]
    method = imported("nested", X, caches)
    assert written(method) == ["caches[0].k", "caches[1].k"]
    new = {name: value.id for value, name in method.input_out}
    assert new["caches[0].k"] != new["caches[1].k"]


def test_a_cache_of_dynamic_length_is_written():
    method = imported("once", X, CACHE, SLOTS, dynamic=LENGTH)
    assert str(method.input_out[0][0].type) == "float32[1, slots, 4]"


def test_a_method_may_only_write():
    method = imported("nothing", X, torch.zeros(1, 2, 4))
    assert written(method) == ["cache"]
    assert method.outputs == ()


def test_a_write_through_a_view_is_a_write():
    assert written(imported("through_view", X, CACHE)) == ["cache"]


def test_a_write_that_forgets_what_was_there_is_a_write():
    assert written(imported("zeroed", CACHE)) == ["cache"]


def test_one_tensor_given_twice_is_two_inputs():
    method = imported("other", X, X)
    assert written(method) == ["x"]
    y = method.inputs[1].id
    (reader,) = [node for node in method.nodes if node.outputs == method.outputs]
    assert reader.inputs[0].id == y


def test_beside_a_carried_argument_it_stays_the_callers():
    dynamic = {"past": {1: Dim("past", 0, 8)}}
    args = (X, torch.zeros(1, 2, 4), torch.zeros(1, 3, 4))
    method = imported("with_past", *args, dynamic=dynamic, carry={"past": 1})
    assert written(method) == ["cache"]
    assert [name for _, name in method.state_out] == ["past"]
    assert method.input_names == ("x", "cache")


@pytest.mark.parametrize("name", ["reshaped", "resized", "replaced"])
def test_what_changes_more_than_values_is_refused(name):
    args = (X, CACHE) if name == "replaced" else (X,)
    with pytest.raises(CaptureError):
        imported(name, *args)
