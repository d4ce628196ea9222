"""Runs that are killed at each call that changes files, and the judge of the rest."""

import os
import shutil
import signal
import sys
from functools import cache, partial

import pytest
import tiny_decoder
from forked_commands import Forked, Spawned
from hand_built import affine_program, write_bundle
from killed_runs import Judge, apart
from resident_memory import LINUX
from stateful_programs import linear_program

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.container import collect_garbage, join_bundle, split_bundle

CALLS = ("write", "fsync", "ftruncate", "rename", "link", "unlink")
LEFT_OVER = ".kvc-1-0123456789abcdef.tmp"


def killed_at(number, run):
    """Run something in a child that is killed instead of its call of this number.

    Return whether it was: False where there are not so many.
    """
    child = os.fork()
    if child == 0:
        left = iter(range(number))

        def dying(call):
            def instead(*args, **kwargs):
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return instead

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        run()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "whole.kvc", affine_program())


def prepare_compile(bundle, at):
    shutil.copyfile(bundle, at / "model.kvc")
    tiny_bundle()  # once, not in each process


def prepare_join(bundle, at):
    split_bundle(bundle, at / "model.kvc")
    write_bundle(at / "joined.kvc", linear_program())


def prepare_split(bundle, at):
    shutil.copyfile(bundle, at / "model.kvc")


def prepare_gc(bundle, at):
    split_bundle(bundle, at / "model.kvc")
    (at / "model.kvc").unlink()
    (at / LEFT_OVER).write_bytes(b"half")


def prepare_save(bundle, at):
    shutil.copyfile(old_session(bundle), at / "talk.kvcs")


def old_session(bundle):
    """Return a saved session, beside the bundle and what is to take its place."""
    old = bundle.with_name("old.kvcs")
    if not old.exists():
        program = load(write_bundle(bundle.with_name("linear.kvc"), linear_program()))
        with program, program.session(8) as session, program.session(9) as other:
            session.save(old)
            other.save(bundle.with_name("new.kvcs"))
    return old


def compiled(at):
    """Write what was compiled, with a data file."""
    tiny_bundle().save(at / "model.kvc", data="external")


@cache
def tiny_bundle():
    spec = tiny_decoder.factory()
    return compile_program(spec.model, spec.methods, load_recipe("fp32"))


def join(at):
    join_bundle(at / "model.kvc", at / "joined.kvc")


def split(at):
    split_bundle(at / "model.kvc", at / "model.kvc")


def save(at):
    beside = at.parents[1]
    with (
        load(beside / "linear.kvc") as program,
        program.restore(beside / "new.kvcs") as session,
    ):
        session.save(at / "talk.kvcs")


RUNS = {
    "compile": (prepare_compile, compiled),
    "join": (prepare_join, join),
    "split": (prepare_split, split),
    "gc": (prepare_gc, collect_garbage),
    "save": (prepare_save, save),
}


@LINUX
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_leaves_what_was_or_what_will_be(name, bundle, tmp_path):
    prepare, run = RUNS[name]
    number, killed, stages = 0, True, set()
    while killed:
        at = tmp_path / str(number) / "files"
        at.mkdir(parents=True)
        prepare(bundle, at)
        if not number:
            judge = Judge(apart(at)[0], after(prepare, run, bundle, tmp_path))
        killed = killed_at(number, partial(run, at))
        assert judge.findings(at) == [], number
        stages.add(judge.stage(at))
        run(at)
        assert judge.after_next(at) == [], number
        number += 1
    assert number > 2
    assert stages >= {"before", "after"}


def after(prepare, run, bundle, tmp_path):
    """Return what a whole run makes."""
    at = tmp_path / "whole" / "files"
    at.mkdir(parents=True)
    prepare(bundle, at)
    run(at)
    return apart(at)[0]


@LINUX
def test_a_command_in_a_fork_does_what_it_does_and_says_how_it_ended(tmp_path):
    (tmp_path / LEFT_OVER).write_bytes(b"half")

    assert Forked(["gc", str(tmp_path)]).wait() == 0
    assert list(tmp_path.iterdir()) == []
    assert Forked(["verify", str(tmp_path / "none.kvc")]).wait() != 0


@LINUX
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("forked", [True, False])
def test_a_command_is_killed_at_a_system_call(forked, tmp_path):
    kept = tmp_path / "files" / LEFT_OVER
    kept.parent.mkdir()
    kept.write_bytes(b"half")
    command = ["gc", str(kept.parent)]
    traced = ["-f", "-qq", "-o", str(tmp_path / "calls"), "--trace=unlink,unlinkat"]
    tracing = ["--inject=unlink,unlinkat:signal=KILL:when=1", *traced]
    if forked:
        process = Forked(command, tracing)
    else:
        process = Spawned([sys.executable, "-m", "kvc.tools", *command], tracing)

    assert process.wait() == -signal.SIGKILL
    assert kept.exists()
    assert LEFT_OVER in (tmp_path / "calls").read_text()


@LINUX
def test_a_fork_that_runs_on_can_be_killed(tmp_path):
    os.mkfifo(tmp_path / "waits")
    process = Forked(["run", str(tmp_path / "waits"), "decode"])
    process.kill()

    assert process.wait() == -signal.SIGKILL


@pytest.fixture
def judged(bundle, tmp_path):
    """Return a folder with a bundle, and the judge of a run that changes it."""
    at = tmp_path / "judged"
    at.mkdir()
    prepare_split(bundle, at)
    before = apart(at)[0]
    split(at)
    return at, Judge(before, apart(at)[0])


def test_a_file_that_is_lost_is_found(judged):
    at, judge = judged
    (at / "model.kvc").unlink()
    assert judge.findings(at) == ["model.kvc is lost"]


def test_a_file_that_is_half_written_is_found(judged):
    at, judge = judged
    content = (at / "model.kvc").read_bytes()
    (at / "model.kvc").write_bytes(content[:-1])
    assert judge.findings(at) == ["model.kvc is neither old nor new"]


def test_a_file_of_another_name_is_found(judged):
    at, judge = judged
    (at / "strange").write_bytes(b"")
    assert judge.findings(at) == ["strange is neither old nor new"]


def test_a_new_bundle_without_its_data_is_found(judged):
    at, judge = judged
    (data,) = at.glob("*.kvd")
    data.unlink()
    (found,) = judge.findings(at)
    assert found.startswith("model.kvc: ")
    assert judge.stage(at) == "between"


def test_a_leftover_is_fine_until_the_next_run(judged):
    at, judge = judged
    (at / LEFT_OVER).write_bytes(b"half")
    assert judge.findings(at) == []
    assert judge.after_next(at) == [f"{LEFT_OVER} is left over"]
