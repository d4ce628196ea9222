"""Sessions whose states have several owners, and owners that are not the host."""

from contextlib import contextmanager

import numpy as np
import pytest
from opaque_backend import Keeper, Kept
from session_kinds import KINDS
from state_backends import compiling_with
from state_runs import opened

from kvc.runtime.states.divided import Divided, divide
from kvc.runtime.states.host import HostMemory, HostStore
from kvc.schema.errors import OutOfMemory, Poisoned

TOKENS = np.arange(6)[None]


@contextmanager
def program_of(name, folder, backend="opaque"):
    kind = KINDS[name]
    options = {"states": kind.states, "recipe": kind.recipe}
    with (
        compiling_with(backend),
        opened(kind.model(), kind.methods, folder, **options) as program,
    ):
        yield program


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    with program_of("linear", tmp_path_factory.mktemp("divided")) as program:
        yield program


def test_a_backend_owns_what_its_partitions_alone_touch(tmp_path):
    with (
        program_of("shifting", tmp_path) as program,
        program.session() as session,
        session.fork() as twin,
    ):
        for one in (session, twin):
            owner = one._states.owner
            assert isinstance(owner, Divided)
            assert Kept in set(map(type, owner.stores)) <= {HostStore, Kept}
            assert one.residency().own is not None


@pytest.mark.parametrize("backend", ["", "greedy", "partitions"])
def test_the_host_owns_what_no_backend_wants(tmp_path, backend):
    with program_of("linear", tmp_path, backend) as program:
        assert isinstance(program.session()._states.owner, HostMemory)


def test_states_outlive_the_delegate_that_made_their_owner(linear):
    with linear.session() as session, linear.session() as other:
        session.prefill(TOKENS[:, :3])
        other.prefill(TOKENS[:, :3])
        expected = other.prefill(TOKENS[:, 3:])
        linear.release()
        assert np.array_equal(session.prefill(TOKENS[:, 3:]), expected)


def test_what_an_owner_cannot_do_leaves_the_session_poisoned(linear, monkeypatch):
    with linear.session() as session:
        session.prefill(TOKENS)
        with monkeypatch.context() as patch:
            patch.setattr(Kept, "_fill", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                session.rewind(2)
        with pytest.raises(Poisoned, match="rewind"):
            session.prefill(TOKENS)
        session.reset()
        session.prefill(TOKENS)
        assert session.position.tolist() == [6]


def test_a_failed_call_waits_for_what_is_under_way(linear, monkeypatch):
    with linear.session() as session, linear.session() as other:
        session.prefill(TOKENS[:, :3])
        other.prefill(TOKENS[:, :3])
        with monkeypatch.context() as patch:
            patch.setattr(Keeper, "synchronise", _interrupted(Keeper.synchronise))
            with pytest.raises(KeyboardInterrupt):
                session.prefill(TOKENS[:, 3:5])  # bound to what is there now
        for name, held in session.state.items():
            assert np.array_equal(held, other.state[name])


def _interrupted(synchronise):
    """Be interrupted while the first partition is waited for, which then fails."""
    times = iter(range(100))

    def interrupted(self):
        if self._waiting and next(times) == 0:
            self.ask(lambda: 1 // 0)
            raise KeyboardInterrupt
        synchronise(self)

    return interrupted


class Fake:
    stores, arenas = (None,), {}

    def __init__(self):
        self.events = []

    def clone(self, held):
        raise OutOfMemory(what="a twin", nbytes=1)

    def synchronise(self):
        self.events.append("synchronise")
        raise KeyError

    def close(self):
        self.events.append("close")


def test_owners_that_are_there_are_closed_when_there_is_no_memory_for_another():
    owners = {"one": Fake(), "other": Fake()}

    def no_memory(groups):
        raise OutOfMemory(what="states", nbytes=1)

    with pytest.raises(OutOfMemory):
        divide([None, None], list(owners), lambda name, _: owners[name], no_memory)
    assert [owner.events for owner in owners.values()] == [["close"]] * 2


def test_twins_that_are_there_are_closed_when_there_is_no_memory_for_another():
    twin, full = Fake(), Fake()
    ready = Fake()
    ready.clone = lambda held: twin
    with pytest.raises(OutOfMemory):
        Divided([(ready, [0]), (full, [1])]).clone([9, 9])
    assert (twin.events, ready.events) == (["close"], [])


def test_all_owners_are_waited_for_whichever_fails():
    owners = [Fake(), Fake()]
    with pytest.raises(KeyError):
        Divided([(owner, [0]) for owner in owners]).synchronise()
    assert [owner.events for owner in owners] == [["synchronise"]] * 2
