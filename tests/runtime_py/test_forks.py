"""Use in a child of the process that opened a program."""

import subprocess
import sys

import pytest
from daily import only
from hand_built import cache_program, write_bundle

SCRIPT = """
import os, sys, traceback
import numpy as np
from kvc.runtime import (Forked, load)

path, snapshot = sys.argv[1:]
program = load(path)
session = program.session()
rows = np.ones((1, 1, 1, 2), np.float32)
session.decode(rows)

def refused(action):
    try:
        action()
    except Forked as error:
        assert error.opened == os.getppid() and error.here == os.getpid(), error
        return
    raise AssertionError("it was not refused")

def child():
    refused(lambda: session.decode(rows))
    refused(lambda: session.call("look"))
    refused(lambda: program.call("look"))
    refused(lambda: program.session())
    refused(lambda: program.restore(snapshot))
    refused(lambda: session.reset())
    refused(lambda: session.rewind(1))
    refused(lambda: session.trim())
    refused(lambda: session.save(snapshot))
    refused(lambda: session.position)
    refused(lambda: session.state["cache"])
    session.close()
    session.close()
    program.close()
    program.close()
    with load(path) as own, own.session() as mine:
        assert mine.position == 0

{held}
pid = os.fork()
if pid == 0:
    code = 1
    try:
        child()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
{released}
session.decode(rows)
assert session.position == 2
assert session.state["cache"][0, 0, :2].all()
with program.session() as other:
    other.decode(rows)
program.close()
"""

HELD = """
import threading
taken, done = threading.Event(), threading.Event()
def hold():
    with session._usage.lock, program._engine._pool._lock, program._engine._lock:
        taken.set()
        done.wait()
holder = threading.Thread(target=hold)
holder.start()
taken.wait()
"""
LOCKS = (HELD, "done.set(); holder.join()")


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
@only(held=[HELD])
@pytest.mark.parametrize(("held", "released"), [("", ""), LOCKS])
def test_a_child_is_refused_and_leaves_its_parent_alone(tmp_path, held, released):
    path = write_bundle(tmp_path / "c.kvc", cache_program())
    script = SCRIPT.replace("{held}", held).replace("{released}", released)
    command = [sys.executable, "-W", "ignore", "-c", script, str(path)]
    command.append(str(tmp_path / "s.kvs"))
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
