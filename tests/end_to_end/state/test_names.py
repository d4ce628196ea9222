"""Whose state is it: names, mounts, parameters, sessions, methods."""

from pathlib import Path

import torch
from state_models import FourOwners, SameName, Shared, WrittenParameter
from state_runs import agree, opened, run, states_agree

from kvc.compiler import Method

X = torch.tensor([1.0, 2.0, 3.0])
METHODS = [
    Method("left", args=(X,)),
    Method("right", args=(X,)),
    Method("write", args=(X,)),
    Method("read"),
]
CALLS = [
    ("left", X),
    ("right", X * 2),
    ("write", X * 5),
    ("read",),
    ("right", X),
    ("left", -X),
    ("read",),
]


def test_a_buffer_k_and_an_argument_k(tmp_path: Path) -> None:
    k = torch.arange(4.0)
    methods = [Method("step", args=(k,)), Method("total", args=(X,))]
    calls = [("step", k), ("total", X), ("step", -k), ("step", k * 3)]
    run(SameName(), methods, calls, tmp_path)


def test_mounts_methods_and_buffers_that_are_not_saved(tmp_path: Path) -> None:
    run(FourOwners(), METHODS, CALLS, tmp_path)
    run(FourOwners(), METHODS[::-1], CALLS, tmp_path)


def test_a_module_mounted_twice_has_one_state_of_each_buffer(tmp_path: Path) -> None:
    with opened(FourOwners(), METHODS, tmp_path) as program:
        assert set(program.states) == {"first.cache", "first.other", "ones", "calls"}


def test_reset_brings_ones_back(tmp_path: Path) -> None:
    with (
        opened(FourOwners(), METHODS, tmp_path) as program,
        program.session() as session,
    ):
        states_agree(session, FourOwners())
        for _ in range(2):
            agree(session, FourOwners(), CALLS)
            session.reset()
            states_agree(session, FourOwners())


def test_two_sessions_do_not_see_each_other(tmp_path: Path) -> None:
    with opened(FourOwners(), METHODS, tmp_path) as program:
        one, two = FourOwners(), FourOwners()
        with program.session() as first, program.session() as second:
            for call in CALLS:
                agree(first, one, [call])
                agree(second, two, [("write", X), call, call])
            states_agree(first, one)
            states_agree(second, two)
        with program.session() as third:
            states_agree(third, FourOwners())


def test_a_written_parameter_is_a_state_under_both_of_its_names(tmp_path: Path) -> None:
    methods = [Method("learn", args=(X,)), Method("apply_it", args=(X,))]
    with opened(WrittenParameter(), methods, tmp_path) as program:
        for _ in range(2):
            with program.session() as session:
                assert session.apply_it(X).tolist() == [0.0, 2.0, 6.0]
                assert session.learn(X).tolist() == [1.0, 3.0, 5.0]
                assert session.apply_it(X).tolist() == [1.0, 6.0, 15.0]
                assert session.learn(X).tolist() == [2.0, 5.0, 8.0]


def test_a_look_at_a_state_follows_it(tmp_path: Path) -> None:
    with (
        opened(FourOwners(), METHODS, tmp_path) as program,
        program.session() as session,
    ):
        look = session.state["first.cache"]
        session.left(X)
        assert look.tolist() == [2.0, 3.0, 4.0]
        assert not look.flags.writeable
        session.reset()
        assert look.tolist() == [1.0, 1.0, 1.0]


def test_a_result_is_the_callers_own(tmp_path: Path) -> None:
    with (
        opened(
            SameName(), [Method("step", args=(torch.ones(4),))], tmp_path
        ) as program,
        program.session() as session,
    ):
        session.step(torch.ones(4)).fill_(99.0)
        assert session.step(torch.ones(4)).tolist() == [2.0] * 4


def test_methods_may_call_forward(tmp_path: Path) -> None:
    one = torch.ones(1)
    names = ["by_forward", "by_call", "forward"]
    methods = [Method(name, args=(one,)) for name in names]
    calls = [(name, one * i) for i, name in enumerate(names * 2)]
    run(Shared(4), methods, calls, tmp_path)
