"""How many threads a process computes with."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hand_built import affine_program, write_bundle

from kvc.runtime import BadSetting, ThreadsFixed, load, threads
from kvc.runtime.threads import (
    TorchThreads,
    default_threads,
    request_threads,
    settle_threads,
)

X = np.ones((2, 4), np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Let each test be a process that has computed nothing, on four processors."""
    monkeypatch.setattr(threads, "_size", threads._Size(os.getpid()))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of files: `machine(siblings, group, limits)` lays it out."""

    def lay_out(siblings, group="/", limits=()):
        for number, text in enumerate(siblings):
            folder = tmp_path / "cpu" / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        (tmp_path / "own").write_text(f"9:cpu:/else\n0::{group}\n")
        for name, text in limits:
            folder = tmp_path / "group" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.max").write_text(f"{text}\n")

    monkeypatch.setattr(threads, "_PROCESSORS", tmp_path / "cpu")
    monkeypatch.setattr(threads, "_GROUPS", tmp_path / "group")
    monkeypatch.setattr(threads, "_OWN_GROUP", tmp_path / "own")
    return lay_out


def test_the_default_counts_cores_not_processors(machine):
    machine(["0,2", "1,3", "0,2", "1,3"])
    assert default_threads() == 2


def test_the_default_counts_only_what_the_process_may_run_on(machine, monkeypatch):
    machine(["0-1", "0-1", "2-3", "2-3"])
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    assert default_threads() == 1


def test_without_a_topology_each_processor_counts(machine):
    machine([])
    assert default_threads() == 4


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([("a/b", "300000 100000"), ("a", "max 100000")], 3),
        ([("a/b", "max 100000"), ("a", "150000 100000")], 2),
        ([("a/b", "1000 100000")], 1),
        ([("c", "100000 100000")], 4),  # of others
        ([("a", "nonsense")], 4),
    ],
)
def test_the_default_respects_control_groups(machine, limits, expected):
    machine("0123", group="/a/b", limits=limits)
    assert default_threads() == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("9", 4), ("0", 4), ("x", 4)])
def test_the_default_respects_the_variable_of_torch(
    machine, monkeypatch, text, expected
):
    machine("0123")
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert default_threads() == expected


def test_nothing_asked_for_is_the_default(machine):
    machine("0123")
    request_threads(None)
    assert settle_threads() == 4


def test_the_last_wish_before_the_first_computation_counts():
    request_threads(3)
    request_threads(2)
    request_threads(None)
    assert settle_threads() == 2


def test_another_number_than_the_one_in_use_is_refused():
    request_threads(2)
    settle_threads()
    request_threads(2)
    request_threads(None)
    with pytest.raises(ThreadsFixed, match="threads=3 is requested") as caught:
        request_threads(3)
    assert (caught.value.wanted, caught.value.found) == (3, 2)
    assert settle_threads() == 2


def test_a_child_of_the_process_chooses_anew(monkeypatch):
    request_threads(2)
    settle_threads()
    monkeypatch.setattr(threads.os, "getpid", lambda: 1)
    request_threads(3)
    assert settle_threads() == 3


FORKED = """
import os, signal, threading
from kvc.runtime import (threads)

def slow():
    looking.set()
    go_on.wait()
    return 1

looking, go_on = threading.Event(), threading.Event()
real, threads.default_threads = threads.default_threads, slow
thread = threading.Thread(target=threads.settle_threads)
thread.start()
looking.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    threads.default_threads = real
    threads.request_threads(1)
    os._exit(threads.settle_threads())
go_on.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""


def test_a_child_forked_while_the_number_is_settled_chooses_anew():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=300)


@pytest.mark.parametrize("wrong", [0, -1, 5, True, 2.0, "2"])
def test_a_number_that_cannot_be_is_refused_by_load(tmp_path, wrong):
    path = write_bundle(tmp_path / "a.kvc", affine_program())
    with pytest.raises(BadSetting, match="threads: expected 1 to 4") as caught:
        load(path, threads=wrong)
    assert caught.value.found == repr(wrong)


def test_loading_settles_nothing_but_a_call_does(tmp_path):
    path = write_bundle(tmp_path / "a.kvc", affine_program())
    with load(path, threads=3) as program:
        load(path, threads=2).close()
        program.forward(X)
        with pytest.raises(ThreadsFixed):
            load(path, threads=3)


@pytest.fixture
def before():
    """Set torch to two threads, as a user may have done."""
    saved = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(saved)


def test_torch_has_the_threads_of_the_runtime_in_calls_alone(
    tmp_path, monkeypatch, before
):
    from kvc.runtime.execution import frames
    from kvc.runtime.kernels.table import load_kernels

    seen = []

    def spy(*arguments):
        seen.append(torch.get_num_threads())

    kernels = load_kernels()
    monkeypatch.setattr(frames, "load_kernels", lambda: {**kernels, "aten::relu": spy})
    with load(write_bundle(tmp_path / "a.kvc", affine_program()), threads=3) as program:
        program.forward(X)
    assert seen == [3]
    assert torch.get_num_threads() == before


def test_torch_gets_its_threads_back_from_a_call_that_fails(before):
    def compute():
        with TorchThreads(1):
            raise RuntimeError(f"with {torch.get_num_threads()}")

    with pytest.raises(RuntimeError, match="with 1"):
        compute()
    assert torch.get_num_threads() == before
