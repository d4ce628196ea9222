"""Processors of logits: those of transformers, the caller's, in every way to run."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wordy_models import BEGIN, END, VOCABULARY, wordy_llama, write_wordy

from kvc.runtime import BadSetting, UnusableLogits, generate, load
from kvc.runtime.generation import GenerationSettings, settings_of
from kvc.runtime.generation.processors import forced_tokens, processors_of
from kvc.runtime.generation.sampling import Chooser, keep_tokens

theirs = pytest.importorskip("transformers").generation.logits_process
VOCAB, STEPS = 12, 10
PROMPT = [BEGIN, 40, 90, 41, 90, 41, 90]

WAYS = {
    "bias": {"sequence_bias": [[[41], 3.0], [[386, 116], -9.0], [[41, 90, 50], 99.0]]},
    "penalty": {"repetition_penalty": 1.8},
    "once": {"no_repeat_ngram_size": 1},
    "pairs": {"no_repeat_ngram_size": 2},
    "triples": {"no_repeat_ngram_size": 3},
    "bad": {"bad_words_ids": [[61], [370, 370], [END]]},
    "long": {"min_new_tokens": 5},
    "length": {"min_length": len(PROMPT) + 4},
    "hidden": {"suppress_tokens": [370, 41], "begin_suppress_tokens": [386]},
}
WAYS["all"] = {name: value for way in WAYS.values() for name, value in way.items()}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The model, and another that guesses for it."""
    folder = tmp_path_factory.mktemp("wordy")
    with (
        load(write_wordy(folder / "target.kvc")) as target,
        load(write_wordy(folder / "draft.kvc", seed=1)) as draft,
    ):
        yield target, draft


def made_by_transformers(prompt, eos=END, **settings):
    model = wordy_llama()
    tokens = torch.tensor([prompt])
    found = model.generate(
        tokens, max_new_tokens=STEPS, do_sample=False, eos_token_id=eos, **settings
    )
    made = found[0, len(prompt) :].tolist()
    return made[:-1] if made[-1] == eos else made


@pytest.mark.parametrize("name", WAYS)
def test_greedy_tokens_are_those_of_transformers(programs, name):
    # A token that the model likes: so that rules about the end have an effect.
    for eos in (END, made_by_transformers(PROMPT)[2]):
        expected = made_by_transformers(PROMPT, eos=eos, **WAYS[name])
        asked = {"max_tokens": STEPS, "stop_tokens": [eos], **WAYS[name]}
        with programs[0].session() as session:
            assert list(generate(session, PROMPT, **asked)) == expected


@pytest.mark.parametrize("name", WAYS)
def test_each_rule_of_these_tests_has_an_effect(name):
    eos = made_by_transformers(PROMPT)[2] if "min" in str(WAYS[name]) else END
    changed = made_by_transformers(PROMPT, eos, **WAYS[name])
    assert changed != made_by_transformers(PROMPT, eos)


ASKED = {
    **WAYS,
    "often": {"frequency_penalty": 1.5},
    "present": {"presence_penalty": 2.0, "logit_bias": {90: 3.0}},
    "drawn": {**WAYS["all"], "temperature": 1.4, "seed": 5, "typical_p": 0.8},
    "own": {"processors": [lambda tokens, logits: logits * (-1) ** len(tokens)]},
}


@pytest.mark.parametrize("name", ASKED)
def test_rows_drafts_and_parts_make_the_tokens_of_one_row(programs, name):
    target, guessing = programs
    prompts = [PROMPT, [BEGIN, 50], PROMPT[:3]]
    asked = {"max_tokens": STEPS, "logprobs": 2, **ASKED[name]}
    alone = []
    for row, prompt in enumerate(prompts):
        seeded = asked | ({"seed": asked["seed"] + row} if "seed" in asked else {})
        with target.session() as session:
            run = generate(session, prompt, **seeded)
            alone.append((list(run), run.logprobs))
            assert [one.token for one in run.logprobs] == run.tokens
        with target.session() as session, guessing.session() as draft:
            run = generate(session, prompt, draft=draft, **seeded)
            assert list(run) == alone[row][0]
            assert [one.token for one in run.logprobs] == run.tokens
            for one, other in zip(run.logprobs, alone[row][1], strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    with target.session(batch=len(prompts)) as session:
        run = generate(session, prompts, **asked)
        list(run)
        assert list(run.tokens) == [tokens for tokens, _ in alone]
        assert [len(one) for one in run.logprobs] == [len(one) for one in run.tokens]


def test_an_own_processor_sees_all_tokens_and_the_logits(programs):
    seen = []

    def look(tokens, logits):
        seen.append(tokens.tolist())
        assert (tokens.dtype, logits.dtype) == (np.int64, np.float32)
        assert logits.shape == (VOCABULARY,)
        logits[:] = 0
        logits[60 + len(tokens)] = 1
        return logits

    with programs[0].session() as session:
        run = generate(session, PROMPT, max_tokens=3, processors=[look])
        assert list(run) == [67, 68, 69]
    assert seen == [PROMPT, [*PROMPT, 67], [*PROMPT, 67, 68]]


@pytest.mark.parametrize(
    "wrong",
    [lambda t, x: None, lambda t, x: x[1:], lambda t, x: x.astype(np.int32), len],
)
def test_a_processor_that_returns_no_logits_is_named(programs, wrong):
    with programs[0].session() as session:
        run = generate(session, PROMPT, max_tokens=3, processors=[wrong])
        with pytest.raises((BadSetting, TypeError), match=r"processors|len\(\)"):
            next(run)
        assert session.position.item() == len(PROMPT)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("processors", 3),
        ("processors", [3]),
        ("sequence_bias", [[41], 3.0]),
        ("sequence_bias", [[[], 3.0]]),
        ("sequence_bias", [[[41], float("nan")]]),
        ("logit_bias", [[41], 3.0]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("bad_words_ids", [3]),
        ("bad_words_ids", [[]]),
        ("frequency_penalty", "much"),
        ("no_repeat_ngram_size", -1),
        ("typical_p", 2),
        ("min_new_tokens", 1.5),
        ("logprobs", -1),
    ],
)
def test_impossible_settings_are_named(name, wrong):
    with pytest.raises(BadSetting, match=name):
        settings_of({}, {name: wrong})


def make_nan(tokens, logits):
    return logits * np.nan


def leave_nothing(tokens, logits):
    return np.full_like(logits, -np.inf)


def keep(tokens, logits):
    return logits


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (make_nan, "processors, make_nan: .*none is NaN, got NaN among them"),
        (leave_nothing, "processors, leave_nothing: .*, got at most -inf"),
    ],
)
def test_a_processor_that_leaves_no_choice_is_named(programs, wrong, told, temperature):
    with programs[0].session() as session:
        settings = {"processors": [keep, wrong, keep], "temperature": temperature}
        run = generate(session, [1, 2], max_tokens=2, **settings)
        with pytest.raises(BadSetting, match=told):
            list(run)


def test_settings_that_leave_no_token_are_told(programs):
    with programs[0].session() as session:
        hidden = list(range(VOCABULARY))
        run = generate(session, [1, 2], max_tokens=2, suppress_tokens=hidden)
        with pytest.raises(UnusableLogits, match="settings or the form of the answer"):
            list(run)


def test_biases_of_a_token_alone_and_in_sequences_add_up():
    given = {"sequence_bias": [[[4], 1.5], [[3, 4], 8.0]], "logit_bias": {4: 0.25}}
    tokens, logits = np.array([7, 3]), np.zeros(6, np.float32)
    for process in processors_of(settings_of({}, given), 1, 1):
        logits = process(tokens, logits)
    assert logits.tolist() == [0, 0, 0, 0, 9.75, 0]


def test_a_biased_token_that_no_model_has_is_named(programs):
    with programs[0].session() as session:
        run = generate(session, PROMPT, logit_bias={9999: 1.0})
        with pytest.raises(BadSetting, match=f"below {VOCABULARY}"):
            next(run)


@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    st.integers(0, 9),
    st.fixed_dictionaries(
        {},
        optional={
            "no_repeat_ngram_size": st.integers(1, 4),
            "repetition_penalty": st.sampled_from([0.5, 1.5]),
            "min_new_tokens": st.integers(0, 5),
            "bad_words_ids": st.just([[1, 2], [3]]),
            "sequence_bias": st.just([[[4], 2.0], [[5, 6], -3.0]]),
            "suppress_tokens": st.just([7]),
            "begin_suppress_tokens": st.just([8, 9]),
            "forced_bos_token_id": st.just(2),
        },
    ),
)
def test_any_rules_together_are_those_of_transformers(prompt, seed, given_settings):
    settings = settings_of({}, {"stop_tokens": [0], **given_settings})
    chooser = chooser_of(settings, prompt)
    rules, tokens = rules_of(settings, len(prompt)), list(prompt)
    random = np.random.default_rng(seed)
    for _ in range(STEPS):
        logits = random.normal(size=VOCAB).astype(np.float32)
        scores = rules(torch.tensor([tokens]), torch.from_numpy(logits)[None])
        if not torch.isfinite(scores).any():
            break
        tokens.append(int(scores.argmax()))
        assert chooser.choose(logits) == tokens[-1]


def chooser_of(settings, prompt, most=None):
    """Return the chooser of an answer to a prompt at the beginning of a session."""
    start = len(prompt)
    forced = forced_tokens(settings, start, most)
    rules = processors_of(settings, start, start)
    place = None if forced is None else lambda ids: forced(ids.size - start)
    return Chooser(settings, prompt, 0, rules, place)


def rules_of(settings, start):
    """Return the processors of transformers, in the order of its `generate`."""
    made, stops = theirs.LogitsProcessorList(), list(settings.stop_tokens)
    if settings.sequence_bias:
        bias = {tokens: float(number) for tokens, number in settings.sequence_bias}
        made.append(theirs.SequenceBiasLogitsProcessor(bias))
    if settings.repetition_penalty != 1:
        penalty = settings.repetition_penalty
        made.append(theirs.RepetitionPenaltyLogitsProcessor(penalty))
    if settings.no_repeat_ngram_size:
        size = settings.no_repeat_ngram_size
        made.append(theirs.NoRepeatNGramLogitsProcessor(size))
    if settings.bad_words_ids:
        bad = [list(word) for word in settings.bad_words_ids]
        made.append(theirs.NoBadWordsLogitsProcessor(bad, torch.tensor(stops)))
    if settings.min_new_tokens:
        least = settings.min_new_tokens
        made.append(theirs.MinNewTokensLengthLogitsProcessor(start, least, stops))
    if settings.forced_bos_token_id is not None:
        first = settings.forced_bos_token_id
        made.append(theirs.ForcedBOSTokenLogitsProcessor(first))
    if settings.suppress_tokens:
        never = list(settings.suppress_tokens)
        made.append(theirs.SuppressTokensLogitsProcessor(never))
    if settings.begin_suppress_tokens:
        late = start == 1 and settings.forced_bos_token_id is not None
        hidden = list(settings.begin_suppress_tokens)
        made.append(theirs.SuppressTokensAtBeginLogitsProcessor(hidden, start + late))
    return made


@pytest.mark.parametrize("mass", [0.05, 0.4, 0.9, 0.999])
def test_typical_tokens_are_those_of_transformers(mass):
    rule = theirs.TypicalLogitsWarper(mass)
    for seed, spread in enumerate((0.5, 2.0, 6.0)):
        logits = np.random.default_rng(seed).normal(0, spread, 1000).astype(np.float32)
        scores = rule(None, torch.from_numpy(logits.astype(np.float64))[None])
        expected = torch.nonzero(scores[0] > -torch.inf)[:, 0].tolist()
        settings = GenerationSettings(temperature=1.0, typical_p=mass)
        assert keep_tokens(logits, settings)[0].tolist() == expected


def test_log_probabilities_of_prompts_are_those_of_the_model(programs):
    prompts, model = [PROMPT * 3, [BEGIN, 50], PROMPT[:3]], wordy_llama()
    expected = []
    for prompt in prompts:
        with torch.no_grad():
            exact = model(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
        expected.append([float(exact[i, t]) for i, t in enumerate(prompt[1:])])
    asked = {"max_tokens": 4, "prompt_logprobs": 3}
    for prompt, wanted in zip(prompts, expected, strict=True):
        with programs[0].session() as session, programs[0].session() as other:
            run = generate(session, prompt, **asked)
            assert list(run) == list(generate(other, prompt, max_tokens=4))
            assert [one.token for one in run.prompt_logprobs] == prompt[1:]
            found = [one.logprob for one in run.prompt_logprobs]
            np.testing.assert_allclose(found, wanted, atol=1e-4)
            assert all(len(one.top) == 3 for one in run.prompt_logprobs)
    with programs[0].session(batch=3) as session:
        batch = generate(session, prompts, **asked)
        list(batch)
        for found, wanted in zip(batch.prompt_logprobs, expected, strict=True):
            np.testing.assert_allclose([x.logprob for x in found], wanted, atol=1e-4)
    with programs[0].session() as session, programs[1].session() as draft:
        run = generate(session, PROMPT, draft=draft, **asked)
        list(run)
        assert len(run.prompt_logprobs) == len(PROMPT) - 1
