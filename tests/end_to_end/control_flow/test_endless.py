"""Loops that a caller of `load` limits: a stranger's may never end."""

import numpy as np
import pytest
import torch

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import BadSetting, TooManyTurns


class Counting(torch.nn.Module):
    """Adds 1 to a state as often as it is told, and says how often it ran."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, turns):
        def body(turn, total):
            return turn + 1, total + 1

        start = (torch.tensor(0), self.total)
        _, total = torch.while_loop(lambda turn, total: turn < turns, body, start)
        self.total.copy_(total)
        return total.clone()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("endless") / "counting.kvc"
    method = Method("forward", (torch.tensor(3),))
    compile_program(Counting(), [method], "fp32").save(path)
    return path


def test_as_many_turns_as_are_allowed_run(path):
    with (
        load(path, max_turns=5) as program,
        program.session(transactional=True) as session,
    ):
        assert session.call("forward", np.array(5)).tolist() == [5, 5, 5]
        with pytest.raises(TooManyTurns, match="after 5 turns") as refused:
            session.call("forward", np.array(6))
        assert (refused.value.method, refused.value.turns) == ("forward", 5)
        # The session is as it was.
        assert session.call("forward", np.array(1)).tolist() == [6, 6, 6]


def test_an_endless_loop_ends(path):
    with (
        load(path, max_turns=100) as program,
        program.session() as session,
        pytest.raises(TooManyTurns),
    ):
        session.call("forward", np.array(1 << 62))


def test_no_turn_may_be_allowed_and_any_number_is_by_default(path):
    with load(path, max_turns=0) as program, program.session() as session:
        assert session.call("forward", np.array(0)).tolist() == [0, 0, 0]
        with pytest.raises(TooManyTurns):
            session.call("forward", np.array(1))
    with load(path) as program, program.session() as session:
        assert session.call("forward", np.array(2000)).tolist() == [2000] * 3


@pytest.mark.parametrize("turns", [-1, 1.5, True, "many"])
def test_a_limit_is_a_number(path, turns):
    with pytest.raises(BadSetting, match="max_turns"):
        load(path, max_turns=turns)
