"""The oracle itself: it sees plans that are wrong, and writes that go astray."""

import faulthandler
import os
import random
import signal
from dataclasses import replace
from itertools import combinations

import hostile_cases
import pytest
from apart import PAGE, POISON, Guard, Region, StrayWriteError, lay_apart
from hand_built import write_bundle
from hostile_cases import Seed, try_case
from program_mutations import Mutator
from resident_memory import LINUX
from stateful_programs import mixed_program
from verifier_checks import all_checks

from kvc.runtime.memory.arenas import Arena
from kvc.schema.codec import decode, encode
from kvc.schema.graph import Scratch
from kvc.schema.verify import verify_program


@pytest.fixture
def seed(tmp_path):
    return Seed(write_bundle(tmp_path / "mixed.kvc", mixed_program()))


def with_one_place(program, one, other):
    """Have two values lie in one place, which only a verifier would see."""
    (method,) = program.methods
    values = list(method.graph.values)
    if not all(isinstance(values[i].storage, Scratch) for i in (one, other)):
        return None
    storage = replace(values[one].storage, offset=values[other].storage.offset)
    values[one] = replace(values[one], storage=storage)
    graph = replace(method.graph, values=tuple(values))
    return replace(program, methods=(replace(method, graph=graph),))


def test_a_plan_that_is_wrong_computes_something_else(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kvc.schema.container.bundle_file.verify_program", lambda *_: None
    )
    kinds = set()
    count = len(seed.program.methods[0].graph.values)
    for one, other in combinations(range(count), 2):
        changed = with_one_place(seed.program, one, other)
        if changed is not None:
            case = hostile_cases.Case(seed.blobs, encode(changed))
            kinds.add(try_case(case, seed, tmp_path, 1).kind)
    assert "differs" in kinds


def test_a_plan_that_is_right_computes_the_same_apart(seed, tmp_path):
    renamed = replace(seed.program, metadata={"a": "1"})
    case = hostile_cases.Case(seed.blobs, encode(renamed))
    assert [try_case(case, seed, tmp_path, n).kind for n in range(5)] == ["same"] * 5


def test_what_is_laid_apart_passes_the_verifier_and_shares_nothing(seed):
    apart = lay_apart(seed.program)
    verify_program(decode(encode(apart.program), "x"), "x", thorough=True)
    ends = 0
    for region in apart.scratch:
        assert region.start >= ends + PAGE
        assert region.start <= region.offset <= region.end - region.nbytes
        assert region.end - region.offset - region.nbytes < PAGE
        ends = region.end


@LINUX
def test_a_write_beside_a_value_is_seen_and_one_into_a_guard_ends_the_process():
    arena = Arena(4 * PAGE)
    guard = Guard(arena, [Region(PAGE, 2 * PAGE, PAGE + 64, 128)])
    arena.bytes[PAGE + 64 : PAGE + 192] = 0
    guard.check()
    arena.bytes[PAGE + 192] = 0
    with pytest.raises(StrayWriteError):
        guard.check()
    guard.poison()
    assert (arena.bytes[PAGE : 2 * PAGE] == POISON).all()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            arena.bytes[2 * PAGE] = 0
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -signal.SIGSEGV


def test_a_file_that_is_refused_names_the_check(seed, tmp_path):
    (method,) = seed.program.methods
    changed = replace(seed.program, methods=(method, method))
    case = hostile_cases.Case(seed.blobs, encode(changed))
    kind, where = try_case(case, seed, tmp_path, 0)
    assert kind == "refused"
    assert where.startswith("schema/verify/methods.py, check_methods: report.unique(")
    assert where in all_checks()


def test_mutations_are_those_of_their_number(seed):
    assert [seed.case(n) for n in range(40)] == [seed.case(n) for n in range(40)]
    mutator = Mutator(seed.program)
    made = [mutator.mutate(random.Random(n)) for n in range(40)]
    assert sum(one != seed.program for one in made) > 30
