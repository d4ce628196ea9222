"""Reports on methods of ExecuTorch that are put together here, and on hostile ones."""

import random
import struct
import time
from dataclasses import replace

import pytest

from kvc.schema.errors import LimitExceeded
from kvc.schema.text import families
from kvc.tools.executorch.contents import (
    Call,
    PteMethod,
    PteValue,
    Tensor,
    check_method,
)
from kvc.tools.executorch.memory import peak_of, states_of, written_by
from kvc.tools.executorch.tables import Buffer


def tensor(number, offset, nbytes):
    made = Tensor("uint8", (nbytes,), nbytes, "", (number, offset), 0, "", False)
    return PteValue("tensor", "", made)


def method(values, calls, operators=("aten::add.out",)):
    calls = tuple(Call("kernel", 0, tuple(args)) for args in calls)
    buffers = (0, 1000, 1000)
    return PteMethod("m", tuple(values), (), (), calls, operators, (), buffers)


def test_the_peak_counts_each_byte_once():
    dice = random.Random(3)
    for _ in range(200):
        values = [
            tensor(dice.choice((1, 2)), dice.randrange(20), dice.randrange(9))
            for _ in range(dice.randrange(1, 12))
        ]
        calls = [
            [dice.randrange(len(values)) for _ in range(3)]
            for _ in range(dice.randrange(1, 12))
        ]
        most = 0
        for now in range(len(calls)):
            before = {arg for args in calls[: now + 1] for arg in args}
            after = {arg for args in calls[now:] for arg in args}
            tensors = [values[arg].tensor for arg in before & after]
            held = {
                (one.memory[0], one.memory[1] + at)
                for one in tensors
                for at in range(one.nbytes)
            }
            most = max(most, len(held))
        assert peak_of(method(values, calls), ()) == most


def test_states_are_what_is_read_before_its_bytes_are_filled():
    dice = random.Random(4)
    for _ in range(300):
        values = [
            tensor(dice.choice((1, 2)), dice.randrange(20), dice.randrange(1, 9))
            for _ in range(dice.randrange(1, 12))
        ]
        calls = [
            [dice.randrange(len(values)) for _ in range(3)]
            for _ in range(dice.randrange(1, 12))
        ]
        filled, seen, expected = set(), set(), []
        for *read, written in calls:
            for arg in dict.fromkeys(read):
                number, start = values[arg].tensor.memory
                held = {(number, start + at) for at in range(values[arg].tensor.nbytes)}
                if arg not in seen and arg != written and not held & filled:
                    expected.append(arg)
                seen.add(arg)
            seen.add(written)
            number, start = values[written].tensor.memory
            end = start + values[written].tensor.nbytes
            filled |= {(number, at) for at in range(start, end)}
        assert list(states_of(method(values, calls))) == expected


def test_lists_that_are_named_very_often_take_little_time():
    many, count = 8_000, 1000
    values = [tensor(1, 16 * index, 8) for index in range(count)]
    values.append(PteValue("tensors", "", None, tuple(range(count))))
    made = method(values, [(count, count)] * many)
    began = time.process_time()
    assert states_of(made) == ()
    assert time.process_time() - began < 10  # each list once, not 16 million times


def test_tensors_in_a_row_that_overlap_are_counted_once():
    count = 5_000
    values = [tensor(1, 16 * index, 32) for index in range(count)]
    made = method(values, [(i, i + 1) for i in range(count - 1)])
    assert peak_of(made, range(count)) == 16 * count + 16


def test_none_in_a_list_that_a_call_writes_is_no_value():
    outputs = PteValue("tensors", "", None, (1, -1))
    values = [tensor(1, 0, 4), tensor(1, 8, 4), outputs, tensor(1, 16, 4)]
    made = method(values, [(0, 2), (3, 1)])
    assert written_by(made, made.calls[0]) == (1,)
    assert states_of(made) == (0, 3)  # nothing wrote the last one


@pytest.mark.parametrize("what", ["list", "text", "operator"])
def test_what_is_named_very_often_has_to_be_short(what):
    many, buffer = 20_000, Buffer(b"", "m.pte")
    value = {
        "list": PteValue("tensors", "", None, (0,) * 1000),
        "text": PteValue("str", "x" * 1000, None),
        "operator": tensor(1, 0, 4),
    }[what]
    name = "x" * 1000 if what == "operator" else "aten::add.out"
    made = method([tensor(1, 0, 4), value], [(1,)] * many, (name,))
    with pytest.raises(LimitExceeded, match="that calls of a method name"):
        check_method(made, buffer)
    check_method(replace(made, calls=made.calls[:100]), buffer)


def test_names_have_an_end():
    def table(text):  # a root, a vtable with one field, the table, the text
        front = struct.pack("<IHHHHiII", 12, 6, 8, 4, 0, 8, 4, len(text))
        return Buffer(front + text, "m.pte").root(("name",))

    assert table(b"x" * 1024).name("name") == "x" * 1024
    with pytest.raises(LimitExceeded, match=r"the bytes of a name.* 1025"):
        table(b"x" * 1025).name("name")
    assert table(b"x" * 1025).text("name") == "x" * 1025


def test_numbers_of_thousands_of_digits_are_no_numbers_of_layers():
    names = ["a." + "1" * 5000, "a." + "2" * 5000, "a.3"]
    found = families(names, name=str, like=lambda _: 0)
    assert [pattern for pattern, _ in found] == names
