"""Whose state is it: names, mounts, parameters, sessions, methods."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from state_models import FourOwners, SameName, Shared, WrittenParameter
from state_runs import agree, opened, run, states_agree

from kvc.compiler import Method
from kvc.runtime import Program

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


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    with opened(FourOwners(), METHODS, tmp_path_factory.mktemp("names")) as program:
        yield program


def test_a_buffer_k_and_an_argument_k(tmp_path: Path) -> None:
    k = torch.arange(4.0)
    methods = [Method("step", args=(k,)), Method("total", args=(X,))]
    calls = [("step", k), ("total", X), ("step", -k), ("step", k * 3)]
    run(SameName(), methods, calls, tmp_path)


def test_mounts_methods_and_buffers_that_are_not_saved(owners: Program) -> None:
    with owners.session() as session:
        agree(session, FourOwners(), CALLS)


def test_the_order_of_methods_changes_nothing(tmp_path: Path) -> None:
    run(FourOwners(), METHODS[::-1], CALLS, tmp_path)


def test_a_module_mounted_twice_has_one_state_of_each_buffer(owners: Program) -> None:
    assert set(owners.states) == {"first.cache", "first.other", "ones", "calls"}


def test_reset_brings_ones_back(owners: Program) -> None:
    with owners.session() as session:
        states_agree(session, FourOwners())
        for _ in range(2):
            agree(session, FourOwners(), CALLS)
            session.reset()
            states_agree(session, FourOwners())


def test_two_sessions_do_not_see_each_other(owners: Program) -> None:
    one, two = FourOwners(), FourOwners()
    with owners.session() as first, owners.session() as second:
        for call in CALLS:
            agree(first, one, [call])
            agree(second, two, [("write", X), call, call])
        states_agree(first, one)
        states_agree(second, two)
    with owners.session() as third:
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


def test_a_look_at_a_state_follows_it(owners: Program) -> None:
    with owners.session() as session:
        look = session.state["first.cache"]
        session.left(X)
        assert look.tolist() == [2.0, 3.0, 4.0]
        assert not look.flags.writeable
        session.reset()
        assert look.tolist() == [1.0, 1.0, 1.0]


def test_a_result_is_the_callers_own(owners: Program) -> None:
    with owners.session() as session:
        session.left(X)[0].fill_(99.0)
        assert session.left(X)[0].tolist() == [3.0, 5.0, 7.0]


def test_methods_may_call_forward(tmp_path: Path) -> None:
    one = torch.ones(1)
    names = ["by_forward", "by_call", "forward"]
    methods = [Method(name, args=(one,)) for name in names]
    calls = [(name, one * i) for i, name in enumerate(names * 2)]
    run(Shared(4), methods, calls, tmp_path)
