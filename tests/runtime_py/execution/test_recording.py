"""`record`: a span for each step of each call of this thread, while asked for."""

import contextvars
import ctypes
import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_decoder import factory

from kvc.compiler import Method, compile_program
from kvc.runtime import load, record
from kvc.runtime.delegates.xnnpack import runtimes
from kvc.runtime.delegates.xnnpack.runtimes import Timings
from kvc.runtime.native import Question
from kvc.schema.errors import IndexOutOfRange, KernelFailed, NativeCallFailed

TOKEN = np.array([[7]])


def compiled(folder, recipe):
    spec = factory()
    path = folder / f"{recipe}.kvc"
    compile_program(spec.model, spec.methods, recipe, states=spec.states).save(path)
    return path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    return {recipe: compiled(folder, recipe) for recipe in ("fp32", "cpu_q8")}


@pytest.mark.parametrize("recipe", ["fp32", "cpu_q8"])
def test_spans_fill_the_call_in_order(bundles, recipe):
    with load(bundles[recipe]) as program, program.session() as session:
        session.call("decode", TOKEN)
        before = time.perf_counter_ns()
        with record() as recorder:
            session.call("decode", TOKEN)
        after = time.perf_counter_ns()
    spans = recorder.spans
    times = [before, *(t for s in spans for t in (s.began, s.ended)), after]
    assert times == sorted(times)
    assert {span.method for span in spans} == {"decode"}
    assert {span.backend for span in spans} == {"cpu" if recipe == "cpu_q8" else ""}
    ops = {span.op for span in spans}
    # Native products are one step with the norm of their rows.
    product = "kvc::linear_q8" if recipe == "cpu_q8" else "aten::rms_norm"
    assert {"kvc::attention", "kvc::cache_update", product} <= ops
    assert ("kvc::linear_q8" in ops) == (recipe == "cpu_q8")
    assert any("kvc.compiler.models.decoder:" in span.source for span in spans)


def test_every_native_step_is_a_span_and_results_stay(bundles):
    with load(bundles["cpu_q8"]) as program:
        with program.session() as session:
            expected = [session.call("decode", TOKEN) for _ in range(2)]
        with program.session() as session, record() as recorder:
            first = session.call("decode", TOKEN)
            count = len(recorder.spans)
            second = session.call("decode", TOKEN)
    assert np.array_equal(first, expected[0])
    assert np.array_equal(second, expected[1])
    assert len(recorder.spans) == 2 * count > 20


def test_a_library_names_its_own_operators(tmp_path):
    pytest.importorskip("executorch.lib", reason="the XNNPACK library is missing")
    path = compiled(tmp_path, "xnnpack_q8")
    with load(path, reference=False) as program, program.session() as session:
        session.call("decode", TOKEN)
        with record() as recorder:
            session.call("decode", TOKEN)
    library = [span for span in recorder.spans if span.backend == "xnnpack"]
    named = {span.op for span in library}
    assert any(op.startswith("Fully Connected") for op in named)
    assert "kvc::delegate" in named  # the rest of each partition
    times = [t for s in recorder.spans for t in (s.began, s.ended)]
    assert times == sorted(times)
    assert all("decoder:" in span.source for span in library)


def test_what_a_library_says_is_of_the_last_run(tmp_path, monkeypatch):
    pytest.importorskip("executorch.lib", reason="the XNNPACK library is missing")
    made = []

    class Watched(Timings):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(runtimes, "Timings", Watched)
    path = compiled(tmp_path, "xnnpack_q8")
    with load(path, reference=False) as program, program.session() as session:
        with record() as recorder:
            session.call("decode", TOKEN)
        first = [span.op for span in recorder.spans]
        used = [one.question for one in made if one.question.answer]
        assert len(used) > 1
        for one in used:
            ctypes.memset(one.answer, 0xFF, one.nbytes)
        unknown = [ctypes.string_at(one.answer, one.nbytes) for one in used]
        session.call("decode", TOKEN)  # nobody records: nobody asks
        assert [ctypes.string_at(o.answer, o.nbytes) for o in used] == unknown
        with record() as recorder:
            session.call("decode", TOKEN)
    for one in used:
        assert 0xFF not in ctypes.string_at(one.answer, one.nbytes)[7::8]
    assert [span.op for span in recorder.spans] == first


def test_a_library_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("executorch.lib", reason="the XNNPACK library is missing")
    path = compiled(tmp_path, "xnnpack_q8")
    with load(path, reference=False) as program, program.session() as session:
        with record():
            session.call("decode", TOKEN)
        monkeypatch.setattr(Question, "status", 3)
        with record(), pytest.raises(NativeCallFailed, match="profiling_info"):
            session.call("decode", TOKEN)


def test_nothing_is_recorded_outside_or_in_other_threads(bundles):
    with load(bundles["cpu_q8"]) as program, program.session() as session:
        with record() as recorder:
            thread = threading.Thread(target=session.call, args=("decode", TOKEN))
            thread.start()
            thread.join()
        session.call("decode", TOKEN)
    assert recorder.spans == ()


class Picking(torch.nn.Module):
    """One of some numbers, made before the index is looked at."""

    def forward(self, x, index):
        return x.sin()[index].cos()


@pytest.mark.parametrize(
    ("recipe", "kind", "recorded"),
    [
        ("fp32", KernelFailed, {"aten::sin"}),
        ("cpu_fp32", IndexOutOfRange, set()),  # one step of native code, which fails
    ],
)
def test_a_step_that_fails_is_not_recorded(recipe, kind, recorded, tmp_path):
    method = Method("forward", (torch.ones(4), torch.tensor([0])))
    compile_program(Picking(), [method], recipe).save(tmp_path / "picking.kvc")
    with load(tmp_path / "picking.kvc") as program, record() as recorder:
        with pytest.raises(kind):
            program.call("forward", np.ones(4, np.float32), np.array([4]))
        assert {span.op for span in recorder.spans} == recorded
        program.call("forward", np.ones(4, np.float32), np.array([3]))
    assert recorder.spans[-1].op == "aten::cos"


def test_blocks_within_one_another_all_record(bundles):
    with (
        load(bundles["cpu_q8"]) as program,
        program.session() as session,
        record() as outer,
    ):
        with record() as inner:
            session.call("decode", TOKEN)
        assert outer.spans == inner.spans != ()
        session.call("decode", TOKEN)
        assert len(outer.spans) == 2 * len(inner.spans)


def test_blocks_may_end_in_any_order(bundles):
    with load(bundles["cpu_q8"]) as program, program.session() as session:
        first, second = record(), record()
        one, other = first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        session.call("decode", TOKEN)
        second.__exit__(None, None, None)
        session.call("decode", TOKEN)
    assert one.spans == ()
    assert len({span.began for span in other.spans if span.op == "kvc::attention"}) == 1


def test_a_task_that_outlives_the_block_is_recorded_no_more(bundles):
    with load(bundles["cpu_q8"]) as program, program.session() as session:
        with record() as recorder:
            task = contextvars.copy_context()  # as asyncio makes it for each
            task.run(session.call, "decode", TOKEN)
            whole = recorder.spans
        task.run(session.call, "decode", TOKEN)
    assert recorder.spans == whole != ()


@pytest.mark.linux
def test_a_recorder_holds_no_memory_of_a_program(bundles):
    path = bundles["cpu_q8"]
    with load(path) as program, program.session() as session, record() as recorder:
        session.call("decode", TOKEN)
        assert path.name in Path("/proc/self/maps").read_text()
    del program, session
    gc.collect()
    assert path.name not in Path("/proc/self/maps").read_text()
    assert recorder.spans


class Branching(torch.nn.Module):
    """Either of two ways, by a flag."""

    def forward(self, flag, x):
        return torch.cond(flag, lambda x: x.sin().cos(), lambda x: x.exp(), (x,))


def test_steps_of_a_branch_lie_within_it(tmp_path):
    inputs = (torch.tensor(True), torch.ones(4))
    method = Method("forward", inputs)
    compile_program(Branching(), [method], "fp32").save(tmp_path / "branch.kvc")
    with load(tmp_path / "branch.kvc") as program, record() as recorder:
        program.call("forward", np.array(True), np.ones(4, np.float32))
    *within, outer = recorder.spans
    assert outer.op == "kvc::cond"
    assert [span.op for span in within] == ["aten::sin", "aten::cos"]
    assert all(outer.began <= s.began <= s.ended <= outer.ended for s in within)
