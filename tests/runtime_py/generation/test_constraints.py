"""Answers of a given form: JSON, a pattern, one of some texts, a grammar."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wordy_models import BEGIN, END, write_wordy

from kvc.runtime import (
    BadSetting,
    Conversation,
    MissingPackage,
    UnusableLogits,
    generate,
    load,
)
from kvc.runtime.generation.constraints import Constraint
from kvc.runtime.generation.matching import Matcher, matchers_of
from kvc.runtime.generation.settings import settings_of
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
        "good": {"type": "boolean"},
    },
    "required": ["name", "tags", "good"],
    "additionalProperties": False,
}
FORMS = {
    "json": {"json_schema": SCHEMA},
    "regex": {"regex": r"[a-c]{2,5}-(one|two)[0-9]{1,3}"},
    "choices": {"choices": ['it is "so"', "it is not", "neither\n"]},
    "lark": {"grammar": 'start: pair (", " pair)?\npair: "(" /[0-9]{1,2}/ ")"'},
    "gbnf": {"grammar": 'root ::= "yes" | "no" [a-z]? [a-z]?'},
    "names": {"regex": r"<think>[a-c]{2}(<think>|<思>)"},  # of added tokens
}
PROMPTS = [[BEGIN, 40, 90], [BEGIN, 50], [BEGIN, 60, 61, 62, 63, 70]]
MOST = 88


def has_form(name, text):
    """Tell whether a text has the form of that name."""
    if name == "json":
        value = json.loads(text)
        right = set(value) == {"name", "tags", "good"} and len(value["name"]) <= 6
        return right and set(value["tags"]) <= {"old", "new"}
    if name == "choices":
        return text in FORMS["choices"]["choices"]
    patterns = {
        "regex": FORMS["regex"].get("regex"),
        "names": FORMS["names"].get("regex"),
        "lark": r"\([0-9]{1,2}\)(, \([0-9]{1,2}\))?",
        "gbnf": "yes|no[a-z]?[a-z]?",
    }
    return re.fullmatch(patterns[name], text) is not None


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The model, another that guesses for it, and the model with an int8 cache."""
    folder = tmp_path_factory.mktemp("wordy")
    with (
        load(write_wordy(folder / "target.kvc")) as target,
        load(write_wordy(folder / "draft.kvc", seed=1)) as draft,
        load(write_wordy(folder / "int8.kvc", kind="int8")) as int8,
    ):
        yield {"target": target, "draft": draft, "int8": int8}


def text_of(program, tokens):
    stream = tokenizer_of(program).stream()
    return "".join(map(stream.push, tokens)) + stream.finish()


def ask(session, prompt, form, **others):
    settings = {"max_tokens": MOST, **FORMS[form], **others}
    return generate(session, prompt, **settings)


DRAWN = {"temperature": 0.8, "seed": 2}


@pytest.mark.parametrize("others", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["target", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_has_its_form(programs, form, kind, others):
    with programs[kind].session() as session:
        for prompt in PROMPTS:
            run = ask(session, prompt, form, **others)
            text = "".join(run.text())
            assert has_form(form, text), text
            assert (run.reason, run.is_complete) == ("stop", True)
            assert END not in run.tokens
            session.reset()


@pytest.mark.parametrize("others", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("form", FORMS)
def test_batches_drafts_and_single_steps_make_the_same_tokens(programs, form, others):
    target, alone = programs["target"], []
    for row, prompt in enumerate(PROMPTS):
        seeded = others | ({"seed": others["seed"] + row} if others else {})
        with target.session() as session:
            run = ask(session, prompt, form, **seeded)
            alone.append(list(run))
        with target.session() as session, programs["draft"].session() as draft:
            run = ask(session, prompt, form, draft=draft, **seeded)
            assert (list(run), run.is_complete) == (alone[row], True)
        with target.session() as session:  # nothing runs ahead where logits are asked
            run = ask(session, prompt, form, logprobs=1, **seeded)
            assert list(run) == alone[row]
            assert [one.token for one in run.logprobs] == alone[row]
    with target.session(batch=len(PROMPTS)) as session:
        batch = ask(session, PROMPTS, form, **others)
        list(batch)
        assert list(batch.tokens) == alone
        assert batch.is_complete == (True, True, True)


def test_a_session_goes_on_after_tokens_that_were_forced(programs):
    target = programs["target"]
    with target.session() as session, target.session() as other:
        run = ask(session, PROMPTS[0], "json")
        while len(run.pending) < 3:
            next(run)
        run.close()
        count = len(PROMPTS[0]) + len(run.tokens)
        assert session.position.item() + len(run.pending) == count
        made = list(generate(session, [*run.pending, 50], max_tokens=5))
        whole = [*PROMPTS[0], *run.tokens, 50]
        assert made == list(generate(other, whole, max_tokens=5))


def test_forced_tokens_run_together(programs):
    with programs["target"].session() as session:
        calls = []
        whole, session.call = (
            session.call,
            lambda *a, **k: calls.append(a) or whole(*a, **k),
        )
        run = ask(session, PROMPTS[0], "json")
        made = list(run)
    widths = [np.asarray(given).shape[1] for _, given in calls]
    assert max(widths[1:]) > 2
    assert len(calls) < len(made)
    assert sum(widths) + len(run.pending) == len(PROMPTS[0]) + len(made)


@pytest.mark.parametrize("most", range(1, 12))
def test_an_answer_that_ends_at_its_limit_is_told_to_be_incomplete(programs, most):
    with programs["target"].session() as session:
        run = generate(session, PROMPTS[0], max_tokens=most, json_schema=SCHEMA)
        text = "".join(run.text())
        assert (run.reason, run.is_complete) == ("max_tokens", False)
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


@pytest.mark.parametrize("capacity", [16, 20, 29])
def test_a_full_cache_ends_it_where_single_steps_would(programs, capacity):
    ends = []
    for logprobs in (None, 0):
        with programs["target"].session(capacity=capacity) as session:
            run = ask(session, PROMPTS[0], "json", logprobs=logprobs)
            ends.append((list(run), run.reason))
    assert ends[0] == ends[1]
    assert ends[0][1] == "length"


@pytest.mark.parametrize("form", ["gbnf", "regex", "lark"])
def test_without_stop_tokens_an_answer_ends_with_its_form(programs, form):
    target, others = programs["target"], {"stop_tokens": [], "temperature": 1.5}
    for seed in range(6):
        with target.session() as session, programs["draft"].session() as draft:
            run = ask(session, PROMPTS[0], form, seed=seed, **others)
            assert has_form(form, text_of(target, list(run)))
            assert BEGIN not in run.tokens
            session.reset()
            drafted = ask(session, PROMPTS[0], form, seed=seed, draft=draft, **others)
            assert list(drafted) == run.tokens
            assert drafted.is_complete


def test_digits_of_a_pattern_are_those_of_ascii(programs):
    pattern = r"(\d[\d.][^\d]?){2}\\d{2}"
    target, found = programs["target"], []
    for seed in range(8):
        with target.session() as session:
            run = generate(
                session, PROMPTS[0], regex=pattern, temperature=50, seed=seed
            )
            found.append(text_of(target, list(run)))
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in found), found
    assert len(set(found)) > 1


def test_a_form_that_becomes_too_large_is_told_in_a_line(programs):
    with programs["target"].session() as session:
        run = generate(session, PROMPTS[0], regex="(a{1000}){1000}", max_tokens=9)
        with pytest.raises(UnusableLogits, match="too many expressions") as told:
            list(run)
    assert "\n" not in str(told.value)


def test_without_a_form_nothing_is_complete_or_incomplete(programs):
    with programs["target"].session() as session:
        run = generate(session, PROMPTS[0], max_tokens=2)
        assert run.is_complete is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"json_schema": {"type": "object", "not": {}}}, "json_schema.*not"),
        ({"json_schema": "{'a': 1}"}, "json_schema.*column 2"),
        ({"json_schema": "{"}, r"is not JSON: .*\(line 1, column 2\)"),
        ({"json_schema": {"type": "wrong"}}, "json_schema"),
        ({"json_schema": {"a": {1, 2}}}, "json_schema"),
        ({"json_schema": 3}, "json_schema"),
        ({"regex": "("}, r"llguidance supports \(unclosed group\), got \($"),
        ({"regex": ""}, "regex"),
        ({"choices": []}, "choices.*at least one"),
        ({"choices": [""]}, "choices"),
        ({"grammar": "start: nothing"}, "grammar"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"grammar": "a", "regex": "a"}, "grammar: expected none beside regex"),
    ],
)
def test_what_is_no_form_is_refused_before_anything_runs(programs, settings, message):
    with (
        programs["target"].session() as session,
        pytest.raises(BadSetting, match=message),
    ):
        generate(session, PROMPTS[0], **settings)


def test_a_bundle_without_a_tokenizer_file_is_told(tmp_path):
    from drafting_models import write_decoder

    with (
        load(write_decoder(tmp_path / "bytes.kvc")) as program,
        program.session() as session,
        pytest.raises(BadSetting, match=r"tokenizer\.json"),
    ):
        generate(session, [1, 2], regex="a")


def test_a_missing_package_is_named(programs, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with (
        programs["target"].session() as session,
        pytest.raises(MissingPackage, match=r"kvc\[grammar\]"),
    ):
        generate(session, PROMPTS[0], regex="a")


def test_rules_that_exclude_the_form_are_told(programs):
    with programs["target"].session() as session:
        run = generate(session, PROMPTS[0], regex="[0-9]", processors=[lambda t, x: x])
        assert len(list(run)) == 1
        session.reset()
        tokens = tokenizer_of(programs["target"]).encode("0123456789", special=False)
        run = generate(session, PROMPTS[0], regex="[0-9]", suppress_tokens=tokens)
        with pytest.raises(UnusableLogits):
            next(run)


def matcher_for(session, form) -> Matcher:
    settings = settings_of({}, {"stop_tokens": [END], **FORMS[form]})
    made = matchers_of(session, settings, 422)()
    assert made is not None
    return made


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_matcher_answers_by_the_tokens_alone(programs, form, data):
    """Whatever it has been asked before: after a rewind, for a draft, in any order."""
    with programs["target"].session() as session:
        used = matcher_for(session, form)
        run = ask(session, PROMPTS[0], form, **DRAWN)
        tokens = np.array(list(run), np.int64)
        logits = np.zeros(422, np.float32)
        places = st.lists(st.integers(0, len(tokens)), min_size=1, max_size=6)
        for place in data.draw(places):
            made, fresh = tokens[:place], matcher_for(session, form)
            if place < len(tokens):
                allowed = used.allowed(made, logits)
                assert np.array_equal(allowed, fresh.allowed(made, logits))
                assert allowed[tokens[place]] == 0
            assert used.forced(made) == fresh.forced(made)
            assert used.is_complete(made) == fresh.is_complete(made)
            other = np.append(made, data.draw(st.integers(0, 421)))
            assert used.is_complete(other) == fresh.is_complete(other)


def test_a_setting_is_compared_by_what_it_asks_for():
    one = settings_of({}, {"json_schema": SCHEMA}).constraint
    assert one == settings_of({}, {"json_schema": json.dumps(SCHEMA)}).constraint
    assert one == Constraint("json_schema", json.dumps(SCHEMA))


def test_a_conversation_answers_in_a_form(programs):
    target = programs["target"]
    with target.session() as session:
        tokenizer, template = tokenizer_of(target), chat_template_of(target)
        chat = Conversation(session, tokenizer, template, choices=["yes", "no"])
        for question in ("Is it?", "And now?"):
            assert "".join(chat.say(question)) in ("yes", "no")


def test_the_example_of_the_page_runs(programs):
    page = (Path(__file__).parents[3] / "runtime_py/GENERATING.md").read_text()
    part = page.partition("## Answers in a form")[2]
    made = {}
    exec(part.partition("```python")[2].partition("```")[0], made)
    text, complete = made["person"](programs["target"].path)
    assert complete is False or json.loads(text)["age"] <= 120
