"""What public handles say of themselves, also where they cannot be used any more."""

import os

import pytest
from counting_model import counting_program
from hand_built import write_bundle
from stateful_programs import BATCH, linear_program, session_program

from kvc.runtime import Closed, generate, load
from kvc.runtime.sessions.usage import Use


@pytest.fixture
def program(tmp_path):
    path = write_bundle(tmp_path / "p.kvc", counting_program())
    with load(path) as opened:
        yield opened


def test_a_session_says_how_far_it_is(program):
    session = program.session()
    start = f"<Session of {program.path}: "
    assert repr(session) == f"{start}position 0 of {session.capacity}>"
    next(generate(session, [1, 2]))
    assert repr(session) == f"{start}position 2 of {session.capacity}, 1 pending>"
    session._states.poisoned = "decode"
    assert repr(session) == f"{start}poisoned by decode>"
    session.close()
    assert repr(session) == f"{start}closed>"


def test_each_row_has_a_position(tmp_path):
    path = write_bundle(tmp_path / "f.kvc", session_program((BATCH,), BATCH))
    with load(path) as program, program.session(batch=2, capacity=9) as session:
        assert repr(session).endswith(": position [0, 0] of 9>")


def test_a_session_that_is_running_says_so(program):
    with program.session() as session, Use(session._usage, "decode"):
        assert repr(session).endswith(": running decode>")


def test_a_session_of_another_process_is_not_looked_at(program):
    session = program.session()
    session._engine._pid = os.getppid()  # as after a fork
    assert repr(session).endswith(": of another process>")


def test_a_program_and_a_prefix_say_what_they_are(program):
    prefix = program.prefix([1, 2, 3])
    assert repr(prefix) == f"<Prefix of {program.path}: 3 tokens>"
    prefix.close()
    assert repr(prefix) == f"<Prefix of {program.path}: 3 tokens, closed>"
    session = program.session()
    assert repr(program) == f"<Program {program.path}: fill, step>"
    program.close()
    assert repr(program) == f"<Program {program.path}: closed>"
    assert repr(session) == f"<Session of {program.path}: closed>"


def test_a_generation_says_how_far_it_is(program):
    run = generate(program.session(), [1], max_tokens=2)
    assert repr(run) == "<Generation: 0 tokens, goes on>"
    list(run)
    assert repr(run) == "<Generation: 2 tokens, max_tokens>"


def test_states_are_named(tmp_path):
    with load(write_bundle(tmp_path / "l.kvc", linear_program())) as program:
        names = ", ".join(program.states)
        assert repr(program.session().state) == f"<StateViews: {names}>"


def test_a_program_printed_says_what_it_holds(program):
    head, *lines = program.summary().splitlines()
    assert head == program.path
    rows = [line.split(maxsplit=1) for line in lines]
    assert rows[:3] == [
        ["recipe", "none"],
        ["method", "fill(tokens), prefill"],
        ["method", "step(token), decode"],
    ]
    assert lines[3].startswith("  state   ")
    assert lines[4].startswith("  data    ")
    assert str(program) == program.summary()
    assert program._repr_mimebundle_()["text/plain"] == str(program)
    program.close()
    assert str(program) == repr(program)
    with pytest.raises(Closed):
        program.summary()


def test_a_report_on_memory_is_printed_as_a_table(program):
    report = program.residency()
    head, title, *_ = str(report).splitlines()
    assert head == "memory of the data, loaded with mode map, in bytes:"
    assert title.split()[:3] == ["blobs", "bytes", "mapped"]
    assert report._repr_mimebundle_() == {"text/plain": str(report)}


def test_methods_say_their_names_and_inputs(program):
    assert repr(dict(program.methods)) == (
        "{'fill': <Method fill(tokens)>, 'step': <Method step(token)>}"
    )
