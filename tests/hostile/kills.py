"""Kill runs that write: `python tests/hostile/kills.py --kills 200 --seed 0`.

`kvc compile`, `join`, `split`, `gc` and `session.save`, each a process of its own, are
ended with SIGKILL, at a moment that the seed draws from the time that a whole run
takes; with `--calls N`, at N system calls of each that change files, and at all that
sync or rename or link (with strace, `apt install strace`). What is left must be the old
files or the new ones, whole (`tests/support/killed_runs.py`), and the next run must
remove the rest. `--folder` keeps the bundle of the demo; `--first N` goes on from kill
N. `compile` writes a tiny decoder with a data file, in a fork of a process that has
imported the compiler (`tests/support/forked_commands.py`).
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
from forked_commands import COMPILER, Forked, Running, Spawned, import_first
from hand_built import affine_program, write_bundle
from killed_runs import Judge, apart

from kvc.runtime import load
from kvc.schema.container import split_bundle

KVC = (sys.executable, "-m", "kvc.tools")
SAVE = """
import sys
from kvc.runtime import (load)

with load(sys.argv[1]) as program, program.restore(sys.argv[2]) as session:
    session.save(sys.argv[3])
"""
SAY_KILLS = 20
LEFT_OVER = ".kvc-1-0123456789abcdef.tmp"
CALLS = "write pwrite64 fsync fdatasync ftruncate flock rename renameat renameat2 link"
CALLS = f"{CALLS} linkat unlink unlinkat".replace(" ", ",")
ALWAYS = ("sync", "rename", "link")  # in a name: such a call is tried in any case


Call = tuple[str, int]  # a name, and which call of that name in a thread


class Action(NamedTuple):
    """What is killed.

    Attributes:
        prepare: put the old files into a folder.
        command: that changes them.
        starting: how it becomes a process.
    """

    prepare: Callable[[Path], None]
    command: Callable[[Path], Sequence[str]]
    starting: Callable[[Sequence[str], Sequence[str]], Running] = Spawned

    def start(self, at: Path, tracing: Sequence[str] = ()) -> Running:
        """Start it, with options of strace if there are any."""
        return self.starting(self.command(at), tracing)


class Stage:
    """The files that actions begin with."""

    def __init__(self, folder: Path) -> None:
        """Make them; the bundle of the demo may be there already."""
        self._whole = folder / "demo.kvc"
        if not self._whole.exists():
            command = [*KVC, "compile", "demo", "-o", str(self._whole), "-q"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        files = folder / "files"
        shutil.rmtree(files, ignore_errors=True)
        (files / "split").mkdir(parents=True)
        self._old = write_bundle(files / "old.kvc", affine_program())
        self._split = files / "split"
        split_bundle(self._whole, self._split / "model.kvc")
        write_bundle(files / "needless.kvc", affine_program())
        split_bundle(files / "needless.kvc", files / "needless.kvc")
        (self._needless,) = files.glob("needless-*.kvd")
        self._sessions = files / "old.kvcs", files / "new.kvcs"
        with load(self._whole) as program, program.session() as session:
            for path in self._sessions:
                session.prefill(np.arange(100)[None])
                session.save(path)

    def actions(self) -> Mapping[str, Action]:
        """Return what can be killed, by name."""
        return {
            "compile": Action(
                lambda at: _copy(self._old, at / "model.kvc"), _compile, Forked
            ),
            "join": Action(self._prepare_join, _join),
            "split": Action(
                lambda at: _copy(self._whole, at / "model.kvc"),
                lambda at: [*KVC, "split", f"{at}/model.kvc", "-q"],
            ),
            "gc": Action(self._prepare_gc, lambda at: [*KVC, "gc", str(at)]),
            "save": Action(
                lambda at: _copy(self._sessions[0], at / "talk.kvcs"), self._save
            ),
        }

    def _prepare_join(self, at: Path) -> None:
        shutil.copytree(self._split, at, dirs_exist_ok=True)
        _copy(self._old, at / "whole.kvc")

    def _prepare_gc(self, at: Path) -> None:
        shutil.copytree(self._split, at, dirs_exist_ok=True)
        _copy(self._needless, at / self._needless.name)
        (at / LEFT_OVER).write_bytes(b"half")

    def _save(self, at: Path) -> Sequence[str]:
        given = self._whole, self._sessions[1], at / "talk.kvcs"
        return [sys.executable, "-c", SAVE, *map(str, given)]


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _compile(at: Path) -> Sequence[str]:
    options = ["--data", "external", "-o", f"{at}/model.kvc", "-q"]
    return ["compile", "tiny_decoder:factory", *options]


def _join(at: Path) -> Sequence[str]:
    return [*KVC, "join", f"{at}/model.kvc", "-o", f"{at}/whole.kvc", "-q"]


class Killer:
    """Kills one action again and again."""

    def __init__(self, name: str, action: Action) -> None:
        """Run it whole, once to be warm and once for the time."""
        self.name, self._action = name, action
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        for _ in range(2):
            with self._folder() as (at, before):
                start = time.monotonic()
                self._run_whole(at)
                self.seconds = time.monotonic() - start
                after, leftovers = apart(at)
                assert not leftovers, leftovers
        self._judge = Judge(before, after)

    def at_moment(self, share: float) -> None:
        """Kill it at a share of the time that it takes."""
        with self._folder() as (at, _):
            process = self._action.start(at)
            try:
                process.wait(share * self.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
            self._look(at, process.wait(), f"at {share:.4f} of {self.seconds:.2f} s")

    def calls(self) -> Iterator[Call]:
        """Yield the system calls that change files: a name, which of these it is."""
        with self._folder() as (at, _):
            log = at.parent / "calls"
            code = self._action.start(at, _tracing(log, CALLS)).wait()
            assert code == 0, f"{self.name} ended with {code}"
            called: dict[str, Counter[str]] = {}
            for line in log.read_text().splitlines():
                process, rest = line.split(maxsplit=1)
                name, bracket, _ = rest.partition("(")
                if bracket and name.isidentifier():
                    called.setdefault(process, Counter())[name] += 1
        for name in CALLS.split(","):
            most = max(count[name] for count in called.values())
            yield from ((name, number) for number in range(1, most + 1))

    def at_call(self, name: str, number: int) -> None:
        """Kill it as it enters a system call, which is then not done."""
        with self._folder() as (at, _):
            when = f"--inject={name}:signal=KILL:when={number}"
            tracing = [when, *_tracing(at.parent / "calls", name)]
            code = self._action.start(at, tracing).wait()
            where = f"at {name} {number}"
            self._look(at, code, where)
            if code == 0:  # strace has not done it, and nothing was tried
                self._find(f"{where}: it was not killed")

    def _look(self, at: Path, code: int, where: str) -> None:
        """Judge what is left, and what the next run makes of it."""
        self.counts["killed" if code == -signal.SIGKILL else "ended"] += 1
        stage, leftovers = self._judge.stage(at), apart(at)[1]
        self.counts[stage] += 1
        self.counts["with a leftover"] += bool(leftovers)
        found = self._judge.findings(at)
        if code not in (0, -signal.SIGKILL):
            found.append(f"it ended with {code}")
        if not found and (leftovers or stage == "between"):
            found = self._next(at)
        for one in found:
            self._find(f"{where}: {one}")

    def _find(self, what: str) -> None:
        self.findings.append(f"{self.name}, {what}")
        print(self.findings[-1], flush=True)

    def _next(self, at: Path) -> list[str]:
        """Write once more, and return what is wrong then."""
        self.counts["run again"] += 1
        self._run_whole(at)
        return self._judge.after_next(at)

    def _run_whole(self, at: Path) -> None:
        code = self._action.start(at).wait()
        assert code == 0, f"{self.name} ended with {code}"

    def _folder(self) -> "_Folder":
        return _Folder(self._action)


class _Folder:
    """A folder with the old files of an action, gone after a `with` statement."""

    def __init__(self, action: Action) -> None:
        self._action = action

    def __enter__(self) -> tuple[Path, Mapping[str, str]]:
        self._around = tempfile.TemporaryDirectory()
        at = Path(self._around.name) / "files"
        at.mkdir()
        self._action.prepare(at)
        return at, apart(at)[0]

    def __exit__(self, *_: object) -> None:
        self._around.cleanup()


def _tracing(log: Path, calls: str) -> list[str]:
    """Return options of strace: write these system calls to a file."""
    return ["-f", "-qq", "-o", str(log), f"--trace={calls}"]


def _drawn(calls: Sequence[Call], count: int, seed: str) -> list[Call]:
    """Return the calls to try: all that matter in any case, and so many others."""
    matter = [call for call in calls if any(part in call[0] for part in ALWAYS)]
    others = [call for call in calls if call not in matter]
    return matter + random.Random(seed).sample(others, min(count, len(others)))


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--calls", type=int, default=0)
    names = ("compile", "join", "split", "gc", "save")
    parser.add_argument("--actions", nargs="*", choices=names, default=names)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = sys.path[0]  # for the factory that is compiled
    import_first(COMPILER)
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        actions = Stage(folder).actions()
        killers = {name: Killer(name, actions[name]) for name in options.actions}
        for killer in killers.values():
            print(f"{killer.name} takes {killer.seconds:.2f} s", flush=True)
        for number in range(options.first, options.kills):
            drawn = random.Random(f"{options.seed} {number}")
            name = drawn.choice([*killers])
            killers[name].at_moment(drawn.random())
            if number % SAY_KILLS == SAY_KILLS - 1:
                print(f"{number + 1} kills", flush=True)
        for killer in killers.values() if options.calls else ():
            calls = list(killer.calls())
            drawn = _drawn(calls, options.calls, f"{options.seed} {killer.name}")
            for number, call in enumerate(drawn):
                killer.at_call(*call)
                if number % SAY_KILLS == SAY_KILLS - 1:
                    print(f"{killer.name}, {number + 1} of {len(drawn)}", flush=True)
            killer.counts["calls"] = len(calls)
    print(json.dumps({one.name: one.counts for one in killers.values()}, indent=1))
    findings = sum(len(one.findings) for one in killers.values())
    print(f"{findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
