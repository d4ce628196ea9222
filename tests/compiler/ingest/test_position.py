"""The input that a session fills: `Method.position`, seen in the IR."""

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.ingest import import_program
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError, CompileError

X = torch.ones(2, 3, 4)
SEQ, BATCH = Dim("seq", 1, 8), Dim("batch", 1, 4)


class Counts(nn.Module):
    """Takes where it is, in several shapes."""

    def step(self, x, input_pos):
        return x + input_pos

    def first(self, input_pos, x):
        return x + input_pos

    def other(self, x, start):
        return x + start

    def rows(self, x, input_pos):
        return x + input_pos[:, None, None]

    def places(self, x, input_pos):
        return x + input_pos[None, :, None]

    def total(self, x, input_pos):
        return x + input_pos.sum()

    def nested(self, x, options):
        return x + options["at"] * options["scale"]

    def advances(self, x, input_pos):
        input_pos.add_(x.shape[1])
        return x + input_pos

    def carried(self, x, input_pos):
        return x, input_pos + 1


def imported(name, position, *args, dynamic=None, carry=None):
    declared = Method(
        name, args, position=position, dynamic=dynamic or {}, carry=carry or {}
    )
    return import_program(Counts(), (capture(Counts(), declared),)).methods[0]


def refusal(*args, **settings):
    with pytest.raises(CaptureError) as caught:
        imported(*args, **settings)
    return str(caught.value)


def test_the_position_is_an_input_but_not_an_argument():
    method = imported("step", "input_pos", X, torch.tensor(0))
    assert method.position == "input_pos"
    assert method.input_names == ("x", "input_pos")
    assert method.input_tree == '{"parameters":["x"],"arguments":[["x",0]]}'


def test_arguments_behind_it_move_up():
    method = imported("first", "input_pos", torch.tensor(0), X)
    assert method.input_names == ("input_pos", "x")
    assert method.input_tree == '{"parameters":["x"],"arguments":[["x",0]]}'


def test_it_may_lie_in_a_container():
    options = {"at": torch.tensor([0]), "scale": torch.tensor([2])}
    method = imported("nested", "options.at", X, options)
    assert method.input_names == ("x", "options.at", "options.scale")
    assert '["options",{"dict":[["scale",1]]}]' in method.input_tree


@pytest.mark.parametrize(
    ("name", "position", "axis"),
    [("rows", torch.tensor([0, 0]), 0), ("places", torch.arange(3), 1)],
)
def test_it_may_have_one_number_for_each_row_or_token(name, position, axis):
    dim = (BATCH, SEQ)[axis]
    dynamic = {"x": {axis: dim}, "input_pos": {0: dim}}
    method = imported(name, "input_pos", X, position, dynamic=dynamic)
    assert str(method.inputs[1].type) == f"int64[{dim.name}]"


def test_an_unknown_name_is_refused_with_those_that_exist():
    message = refusal("step", "input_posn", X, torch.tensor(0))
    assert "position names the input 'input_posn', but its tensors are x" in message


@pytest.mark.parametrize(
    ("position", "found"),
    [
        (torch.tensor(0, dtype=torch.int32), "int32[]"),
        (torch.tensor(0.0), "float32[]"),
        (torch.zeros(1, 1, dtype=torch.int64), "int64[1, 1]"),
    ],
)
def test_another_type_is_refused(position, found):
    assert f"it is {found}; a position is" in refusal("step", "input_pos", X, position)


def test_a_position_that_the_method_changes_is_refused():
    message = refusal("advances", "input_pos", X, torch.tensor(0))
    assert "the method writes into it" in message


def test_a_position_that_is_carried_is_refused():
    message = refusal(
        "carried", "input_pos", X, torch.tensor(0), carry={"input_pos": 1}
    )
    assert "it is carried" in message


def test_a_length_of_its_own_is_refused():
    own = {"input_pos": {0: Dim("own", 1, 8)}}
    message = refusal("total", "input_pos", X, torch.arange(3), dynamic=own)
    assert "no other input has the size own; use the Dim of the tokens" in message


def test_two_names_are_refused():
    step = Method("step", (X, torch.tensor(0)), position="input_pos")
    other = Method("other", (X, torch.tensor(0)), position="start")
    captured = tuple(capture(Counts(), method) for method in (step, other))
    with pytest.raises(
        CompileError, match="method step calls its position 'input_pos'"
    ):
        import_program(Counts(), captured)


def test_a_method_without_one_leaves_it_alone():
    step = Method("step", (X, torch.tensor(0)), position="input_pos")
    other = Method("other", (X, torch.tensor(0)))
    captured = tuple(capture(Counts(), method) for method in (step, other))
    positions = [m.position for m in import_program(Counts(), captured).methods]
    assert positions == ["input_pos", ""]
