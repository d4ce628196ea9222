"""Frames of other lengths: what depends on them is bound again, and nothing else."""

import gc
import weakref

import numpy as np
import pytest
import torch
from daily import only
from grown_model import MOST, WIDTH, Grown, grown_methods
from hand_built import write_bundle
from made_once import MadeOnce
from stateful_programs import caller_program

from kvc.compiler import compile_program
from kvc.runtime import CacheOverflow, GrowingArray, KernelFailed, load
from kvc.runtime.calls import contexts
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution import frames
from kvc.schema.ops import DELEGATE

RECIPES = ["fp32", "xnnpack_q8"]
TOLERANCE = {"fp32": 1e-5, "xnnpack_q8": 0.2}
NONE = torch.zeros(1, 0, WIDTH)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")

    def made(name):
        path, recipe = folder / f"{name}.kvc", name
        methods = grown_methods(chunks=name == "fp32")
        if name == "callers":
            methods, recipe = grown_methods(carried=False), "fp32"
        compile_program(Grown(), methods, recipe).save(path)
        return path

    return MadeOnce(made)


@pytest.fixture(params=RECIPES)
def recipe(request):
    return request.param


@pytest.fixture
def program(bundles, recipe):
    with load(bundles[recipe]) as opened:
        yield opened


@pytest.fixture
def plain(bundles):
    with load(bundles["fp32"]) as opened:
        yield opened


@pytest.fixture
def bound(monkeypatch):
    """Collect the op of every instruction that is bound."""
    found, bind_one = [], frames._Binder._bind_one

    def counted(self, index):
        found.append(self._graph.instructions[index].op)
        return bind_one(self, index)

    monkeypatch.setattr(frames._Binder, "_bind_one", counted)
    return found


def tokens(seq=1, seed=0):
    return torch.rand(1, seq, WIDTH, generator=torch.Generator().manual_seed(seed))


class Twin:
    """A session and eager torch, which go the same way."""

    def __init__(self, session, tolerance=1e-5):
        self.session, self.model, self.past = session, Grown().eval(), NONE
        self.tolerance = tolerance

    def call(self, name, x, *others):
        # A quantized past is not that of eager torch: only one call's error counts.
        self.past = torch.from_numpy(self.session.state["past"].copy())
        results = self.session.call(name, x, *others)
        with torch.no_grad():
            wanted = getattr(self.model, name)(x, self.past, *others)[:-1]
        for one, other in zip(_flat(results), wanted, strict=True):
            tolerance = self.tolerance
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def _flat(results):
    return results if isinstance(results, list | tuple) else [results]


@pytest.fixture
def twin(program, recipe):
    with program.session() as session:
        yield Twin(session, TOLERANCE[recipe])


@only(recipe=["xnnpack_q8"])
def test_many_calls_give_what_concatenation_gives(twin):
    for seed in range(40):
        twin.call("step", tokens(1, seed))
    assert twin.session.position == 40


def test_chunks_of_other_sizes_may_come_between(plain):
    with plain.session() as session:
        twin = Twin(session)
        for seed, seq in enumerate([3, 1, 1, 4, 1, 3, 1, 1, 2, 1, 8, 1]):
            twin.call(("step", "again")[seed % 2], tokens(seq, seed))
            twin.call("step", tokens(seq, seed + 20))


def test_methods_that_share_the_past_may_alternate(twin):
    for seed, name in enumerate(["step", "again", "both"] * 8):
        twin.call(name, tokens(1, seed))
    for seed, name in enumerate(["step", "step", "both", "both", "again"] * 3):
        twin.call(name, tokens(1, seed + 30))


def test_the_past_may_become_shorter(twin):
    for seed, back in enumerate([0, 0, 0, 1, 0, 0, 3, 1, 0, 0, 0, 4, 0]):
        twin.session.rewind(back)
        twin.call("step", tokens(1, seed))
    twin.session.reset()
    assert twin.session.position == 0
    for seed in range(3):
        twin.call("step", tokens(1, seed))


def test_an_input_may_be_as_long_as_the_past(plain, monkeypatch):
    with plain.session() as session:
        twin = Twin(session)
        twin.call("masked", tokens(), torch.rand(1, 0, 1))
        monkeypatch.delattr(contexts, "bind_graph")
        for seed in range(1, 12):
            twin.call("masked", tokens(1, seed), torch.rand(1, seed, 1))


def test_two_sessions_may_alternate(program, recipe):
    with program.session() as a, program.session() as b:
        twins = [Twin(a, TOLERANCE[recipe]), Twin(b, TOLERANCE[recipe])]
        for seed in range(12):
            twins[seed % 2].call("step", tokens(1, seed))
            twins[seed % 3 % 2].call("again", tokens(1, seed + 50))


def test_every_call_gives_the_bits_of_a_new_frame(program):
    """The same calls with all frames thrown away before each."""
    with program.session() as a, program.session() as b:
        for seed in range(20):
            name = ("step", "both", "again")[seed * 7 % 3]
            x = tokens(1, seed)
            kept = _flat(a.call(name, x))
            program._engine._pool._idle.clear()
            for one, other in zip(kept, _flat(b.call(name, x)), strict=True):
                assert torch.equal(one, other)
            assert np.array_equal(a.state["past"], b.state["past"])


def test_only_what_depends_on_the_length_is_bound_again(plain, bound):
    with plain.session() as session:
        session.step(tokens())
        everything = len(plain.methods["step"].graph.instructions)
        assert len(bound) == everything
        for _ in range(3):
            bound.clear()
            session.step(tokens())
            assert 0 < len(bound) < everything / 2
            assert not {"aten::linear", "aten::silu", "kvc::append"} & set(bound)
        twin = Twin(session)
        twin.call("step", tokens())


def test_an_append_alone_binds_nothing_again(plain, bound):
    with plain.session() as session:
        session.again(tokens())
        bound.clear()
        for _ in range(5):
            session.again(tokens())
        assert bound == []
        assert session.position == 6


def test_only_delegates_of_growing_values_are_prepared_again(bundles, bound):
    with load(bundles["xnnpack_q8"]) as program, program.session() as session:
        ops = [i.op for i in program.methods["step"].graph.instructions]
        session.step(tokens())
        bound.clear()
        session.step(tokens())
        assert 0 < bound.count(DELEGATE) < ops.count(DELEGATE)


def test_constants_are_prepared_once(bundles, monkeypatch):
    prepared, preparations = [], frames.load_preparations()

    def counted(op, prepare):
        return lambda weight: prepared.append(op) or prepare(weight)

    made = {op: (i, counted(op, make)) for op, (i, make) in preparations.items()}
    monkeypatch.setattr(frames, "load_preparations", lambda: made)
    program = load(bundles["xnnpack_q8"], reference=True)
    with program, program.session() as session:
        for seed in range(6):
            session.step(tokens(1, seed))
    assert prepared == ["kvc::linear_qd8"] * 4


def test_a_binding_that_breaks_off_leaves_nothing_behind(plain, monkeypatch):
    with plain.session() as session:
        twin = Twin(session)
        twin.call("step", tokens())
        bind_view, left = frames._Binder._bind_view, [3]

        def interrupted(self, index, instruction):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            bind_view(self, index, instruction)

        monkeypatch.setattr(frames._Binder, "_bind_view", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.step(tokens())
        assert session.position == 1
        for seed in range(3):
            twin.call("step", tokens(1, seed))


def test_a_delegate_that_cannot_be_prepared_again_is_named(bundles, monkeypatch):
    def refused(*_):
        raise RuntimeError("no memory")

    program = load(bundles["xnnpack_q8"], reference=True)
    with program, program.session() as session:
        twin = Twin(session, 0.2)
        twin.call("step", tokens())
        with monkeypatch.context() as broken:
            broken.setattr(ReferenceHandle, "prepare", refused)
            with pytest.raises(KernelFailed, match=r"kvc::delegate.*no memory"):
                session.step(tokens())
        assert session.position == 1
        twin.call("step", tokens(1, 1))


def test_a_step_that_fails_in_the_middle_is_run_again(plain, monkeypatch):
    from kvc.runtime.execution.executor import Frame

    with plain.session() as session:
        twin = Twin(session)
        for seed in range(3):
            twin.call("step", tokens(1, seed))
        with monkeypatch.context() as broken:
            run = Frame._run
            cut = lambda frame, progress: run(_half(frame), progress)  # noqa: E731
            broken.setattr(Frame, "_run", cut)
            with pytest.raises(KernelFailed):
                session.step(tokens())
        assert session.position == 3
        for seed in range(3):
            twin.call("step", tokens(1, seed))


def _half(frame):
    """Return a frame that fails after half its steps."""
    from dataclasses import replace

    middle = len(frame.steps) // 2
    steps = (*frame.steps[:middle], (torch.full, (1,)))
    return replace(frame, steps=steps)


def test_a_full_cache_leaves_the_frame_as_it_is(plain, bound):
    with plain.session(capacity=3) as session:
        twin = Twin(session)
        for seed in range(3):
            twin.call("again", tokens(1, seed))
        bound.clear()
        with pytest.raises(CacheOverflow):
            session.again(tokens())
        session.rewind(1)
        twin.call("again", tokens())
        assert bound == []


def test_a_callers_array_grows_without_binding_all_again(bundles, monkeypatch, bound):
    model, past = Grown().eval(), NONE
    with load(bundles["callers"]) as program:
        growing = GrowingArray("float32", (1, 0, WIDTH), 1, MOST)
        program.step(tokens(), growing)
        everything = len(bound)
        monkeypatch.delattr(contexts, "bind_graph")
        for seed in range(10):
            past = torch.from_numpy(growing.array.copy())
            bound.clear()
            result, again = program.step(tokens(1, seed), growing)
            with torch.no_grad():
                torch.testing.assert_close(
                    result, model.step(tokens(1, seed), past)[0], rtol=1e-5, atol=1e-5
                )
            assert again is growing
            assert len(bound) < everything / 2


def test_arrays_of_several_callers_take_turns(bundles, monkeypatch):
    model = Grown().eval()
    arrays = [GrowingArray("float32", (1, 0, WIDTH), 1, most) for most in (16, 32)]
    with load(bundles["callers"]) as program:
        program.step(tokens(), arrays[0])
        monkeypatch.delattr(contexts, "bind_graph")
        for seed in range(12):
            growing = arrays[seed * 5 % 3 % 2]
            past = torch.from_numpy(growing.array.copy())
            given = past.clone() if seed % 4 == 3 else growing
            result, _ = program.step(tokens(1, seed), given)
            with torch.no_grad():
                wanted = model.step(tokens(1, seed), past)[0]
            torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_another_array_of_a_caller_is_not_bound_from_scratch(tmp_path, monkeypatch):
    x = np.ones((3, 4), np.float32)
    with load(write_bundle(tmp_path / "c.kvc", caller_program())) as program:
        program.add(np.zeros((3, 4), np.float32), x)
        monkeypatch.delattr(contexts, "bind_graph")
        totals = [np.full((3, 4), value, np.float32) for value in range(5)]
        for value, total in enumerate(totals):
            added, product = program.add(total, x)
            assert (added == value + 1).all()
            assert (product == value).all()
        for value, total in enumerate(totals):
            assert (total == value + 1).all()


def test_a_frame_that_was_bound_again_keeps_no_array_of_a_caller(tmp_path):
    x = np.ones((2, 1, 4), np.float32)
    with load(write_bundle(tmp_path / "c.kvc", caller_program())) as program:
        growing = GrowingArray("float32", (2, 0, 4), 1, 8)
        plain = np.zeros((2, 3, 4), np.float32)
        gone = [weakref.ref(growing), weakref.ref(growing.memory), weakref.ref(plain)]
        for _ in range(3):
            program.extend(growing, x)
        program.extend(plain, x)
        total = np.zeros((3, 4), np.float32)
        for _ in range(2):
            other, total = total, total.copy()
            gone.append(weakref.ref(other))
            program.add(other, other * 2)
        del growing, plain, other
        gc.collect()
        assert [one() for one in gone] == [None] * len(gone)
