"""What is remembered of earlier texts: whose it is, and how many bytes it takes."""

import numpy as np
import pytest
from asked_requests import SHORT, Heard, alone, ask, assert_as_alone
from drafting_rows import VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from made_once import MadeOnce
from peft_adapters import convert, save_adapter
from served_models import chat_model

from kvc.runtime import AdapterInUse, UnknownName, load
from kvc.runtime.generation import GenerationSettings
from kvc.runtime.memory import system
from kvc.serving.scheduling import Limits, Request, Scheduler

LETTERS = np.random.default_rng(4).integers(10, 90, 40).tolist()
PROMPT = tuple(LETTERS)


@pytest.fixture(scope="module")
def home(chat_bundle):
    """Return the folder of a bundle of some rows, with two adapters for it."""
    home = chat_bundle.parent
    with load(chat_bundle) as program:
        save_adapter(chat_model(), home / "clerk", seed=5)
        convert(home / "clerk", program, home / "clerk.kva")
    return home


@pytest.fixture
def program(home):
    with load(home / "chat.kvc") as opened:
        for name in ("poet", "clerk"):
            opened.adapters.load(home / f"{name}.kva")
        yield opened


@pytest.fixture(scope="module")
def kinds(bundles):
    made = MadeOnce(lambda kind: load(bundles[kind]))
    yield made
    for program in made.values():
        program.close()


def used(name, scale=1.0):
    return {} if name is None else {"adapter": name, "scale": scale}


def test_a_text_is_of_one_adapter_and_scale(program):
    asked = [(None, 1.0), ("poet", 1.0), ("poet", 0.5), ("clerk", 1.0), (None, 0.3)]
    with Scheduler(program, Limits(rows=2)) as scheduler:
        for name, scale in (*asked, *asked):
            one = ask(scheduler, PROMPT, adapter=name, scale=scale)
            assert_as_alone(program, one, PROMPT, **used(name, scale))
        assert one.last.reused == len(PROMPT) - 1
    found = [tuple(alone(program, PROMPT, **used(*one))[0]) for one in asked[:4]]
    assert len(set(found)) == 4, "the adapters change answers"


def test_requests_without_an_adapter_have_the_default_one(program):
    with Scheduler(program, Limits(rows=2)) as scheduler:
        for name in ("poet", None, "clerk", "poet"):
            program.adapters.use(name)
            for other in (None, "clerk"):
                one = ask(scheduler, PROMPT, adapter=other)
                assert_as_alone(program, one, PROMPT, **used(other))


def test_an_adapter_that_is_freed_and_loaded_again_brings_no_old_text(program, home):
    with Scheduler(program, Limits(rows=2)) as scheduler:
        old = ask(scheduler, PROMPT, adapter="poet")
        assert_as_alone(program, old, PROMPT, adapter="poet")
        with pytest.raises(AdapterInUse):
            program.adapters.free("poet")
    with Scheduler(program, Limits(rows=2, remembered_nbytes=0)) as scheduler:
        assert ask(scheduler, PROMPT, adapter="poet").last.ending
        program.adapters.free("poet")
        with pytest.raises(UnknownName):
            ask(scheduler, PROMPT, adapter="poet")
        program.adapters.load(home / "clerk.kva", "poet")
        new = ask(scheduler, PROMPT, adapter="poet")
        assert_as_alone(program, new, PROMPT, adapter="clerk")
        assert new.tokens != old.tokens


def test_a_row_whose_adapter_could_not_be_chosen_does_not_pretend_to_have_it(
    program, home, monkeypatch
):
    with Scheduler(program, Limits(rows=1, remembered_nbytes=0)) as scheduler:
        session = scheduler._turns.rows._session
        use = session.use_adapter

        def freed(*given):
            monkeypatch.setattr(session, "use_adapter", use)
            raise UnknownName(kind="adapter", name="poet", known=())

        monkeypatch.setattr(session, "use_adapter", freed)
        assert ask(scheduler, PROMPT, adapter="poet").last.ending == "failed"
        one = ask(scheduler, PROMPT, adapter="poet")
        assert_as_alone(program, one, PROMPT, adapter="poet")


@pytest.mark.parametrize("kind", ["cache", "sums"])
@pytest.mark.parametrize("kept", [0, 2.5])
def test_all_texts_that_have_ended_keep_to_their_bytes(kinds, kind, kept):
    program, found = kinds[kind], []
    with Scheduler(program) as scheduler:
        one = scheduler.foretold_nbytes(64)
    limits = Limits(rows=4, nbytes=5 * one, remembered_nbytes=int(kept * one))
    texts = np.random.default_rng(3).integers(6, VOCAB, (12, 56))
    with Scheduler(program, limits) as scheduler:

        def hear(heard):
            return lambda update: (found.append(scheduler.status), heard(update))

        heard = [Heard() for _ in texts]
        for text, listener in zip(texts.tolist(), heard, strict=True):
            scheduler.submit(Request(text, SHORT), hear(listener))
        for text, listener in zip(texts.tolist(), heard, strict=True):
            assert_as_alone(program, listener, text)
    assert max(status.remembered_nbytes for status in found) <= limits.remembered_nbytes
    assert max(status.nbytes for status in found) <= limits.nbytes
    if kept:
        assert found[-1].remembered_nbytes > one


def test_a_shorter_text_is_used_if_the_longest_cannot_go_back(kinds):
    """Two parked texts of a model with sums: the prompt parts from the longer one."""
    program = kinds["sums"]
    texts = np.random.default_rng(3).integers(6, VOCAB, 4).tolist() * 20
    with Scheduler(program, Limits(rows=1, capacity=64)) as scheduler:
        admission, last = scheduler._turns._admission, GenerationSettings(max_tokens=1)
        admission.keep_prompt = lambda job: park_always(admission, job)
        for count in (20, 40):
            assert ask(scheduler, texts[:count], last).last.ending
        other = (*texts[:30], 1, 2)
        one = ask(scheduler, other)
        assert_as_alone(program, one, other)
        assert one.last.reused == 20


def park_always(admission, job):
    tokens = job.tokens.copy()
    admission._texts.park(tokens, job.adapter, admission._rows.twin(job.row))


def test_the_default_is_a_part_of_the_memory_there_is(monkeypatch, tmp_path):
    assert Limits(remembered_nbytes=7).most_remembered == 7
    assert 0 < Limits().most_remembered <= 1 << 30
    (tmp_path / "memory.max").write_text(f"{800 << 20}\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "memory.max").write_text("max\n")
    groups = [tmp_path / "inner", tmp_path, tmp_path / "none"]
    monkeypatch.setattr(system, "own_groups", lambda: iter(groups))
    assert Limits().most_remembered == 100 << 20


ASKED = st.lists(
    st.tuples(
        st.sampled_from([None, "poet", "clerk"]),
        st.sampled_from([1.0, 0.5]),
        st.sampled_from([0, 9, 20]),
        st.lists(st.integers(10, 90), min_size=1, max_size=12),
        st.integers(1, 6),
        st.sampled_from(["a", "b"]),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=10,
)


def check_random_requests(home, requests, limits):
    """Run requests, some of which are cancelled; all get what they get alone."""
    with load(home / "chat.kvc") as program:
        for name in ("poet", "clerk"):
            program.adapters.load(home / f"{name}.kva")
        asked, found = [], []
        with Scheduler(program, limits) as scheduler:
            for name, scale, shared, rest, count, client, leaves in requests:
                heard, prompt = Heard(), (*PROMPT[:shared], *rest)
                wanted = GenerationSettings(max_tokens=count)
                request = Request(
                    prompt, wanted, adapter=name, scale=scale, client=client
                )
                ticket = scheduler.submit(
                    request, listener(scheduler, heard, leaves, found)
                )
                heard.ticket = ticket
                if leaves == 0:
                    ticket.cancel()
                asked.append((heard, prompt, wanted, used(name, scale), leaves))
            for heard, prompt, wanted, session, leaves in asked:
                expected, reason = alone(program, prompt, wanted, **session)
                ending = heard.last.ending
                assert ending in (reason, *(["cancelled"] * (leaves is not None)))
                assert heard.tokens == expected[: len(heard.tokens)]
                assert ending == "cancelled" or heard.tokens == expected
        for heard, *_ in asked:
            assert len([one for one in heard.updates if one.ending]) == 1
        if limits.nbytes is not None:
            assert max(one.nbytes for one in found) <= limits.nbytes
        for name in ("poet", "clerk"):
            program.adapters.free(name)


def listener(scheduler, heard, leaves, found):
    def hear(update):
        found.append(scheduler.status)
        heard(update)
        if leaves is not None and len(heard.updates) == leaves:
            heard.ticket.cancel()

    return hear


LIMITS = st.builds(
    Limits,
    rows=st.integers(1, 4),
    nbytes=st.sampled_from([None, 1 << 18, 1 << 20]),
    remembered_nbytes=st.sampled_from([0, 1 << 17, 1 << 30]),
    stall=st.sampled_from([0.0, 0.2]),
    capacity=st.just(64),
)


@settings(max_examples=6, deadline=None)
@given(requests=ASKED, limits=LIMITS)
def test_requests_with_adapters_that_are_cancelled_any_time_are_as_alone(
    home, requests, limits
):
    check_random_requests(home, requests, limits)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(requests=ASKED, limits=LIMITS)
def test_many_requests_with_adapters_are_as_alone(home, requests, limits):
    check_random_requests(home, requests, limits)
