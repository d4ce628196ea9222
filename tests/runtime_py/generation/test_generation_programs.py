"""Random programs of generations: every feature, after every way to reach a session.

Whatever has happened to a session before, a generation makes the tokens that a fresh
session makes after the same tokens.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wordy_models import BEGIN, ROWS, write_wordy

from kvc.runtime import generate, load

CAPACITY = 96
FEATURES = {
    "plain": {},
    "drawn": {"temperature": 0.9, "seed": 4, "top_k": 20},
    "typical": {"temperature": 1.1, "seed": 1, "typical_p": 0.7},
    "rules": {"repetition_penalty": 1.6, "no_repeat_ngram_size": 2},
    "answered": {"frequency_penalty": 0.9, "presence_penalty": 0.4},
    "biased": {"logit_bias": {90: 4.0}, "bad_words_ids": [[370], [386, 116]]},
    "own": {"processors": [lambda tokens, logits: logits * (1 + len(tokens) % 3)]},
    "logprobs": {"logprobs": 1},
    "prompt": {"prompt_logprobs": 0},
    "regex": {"regex": "[a-f]{3}-(yes|no)[0-9]{2}"},
    "choices": {"choices": ["once upon", "once more"], "temperature": 1.0, "seed": 2},
    "json": {"json_schema": {"type": "array", "items": {"type": "boolean"}}},
}
WAYS = ("alone", "draft", "prompt")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The model with a cache of float32 and one of int8, and a model that guesses."""
    folder = tmp_path_factory.mktemp("wordy")
    kinds = {"float32": (0, "float32"), "int8": (0, "int8"), "draft": (1, "float32")}
    opened = {
        name: load(write_wordy(folder / f"{name}.kvc", *kind))
        for name, kind in kinds.items()
    }
    yield opened
    for program in opened.values():
        program.close()


steps = st.one_of(
    st.tuples(
        st.just("generate"),
        st.sampled_from(sorted(FEATURES)),
        st.sampled_from(WAYS),
        st.integers(1, 12),  # tokens that are taken
        st.lists(st.integers(3, 400), max_size=4),  # tokens of the user before
    ),
    st.tuples(st.just("rewind"), st.integers(0, 8)),
    st.tuples(st.just("fork")),
    st.tuples(st.just("save")),
    st.tuples(st.just("reset")),
)


def made(session, tokens, history, feature, drafting, guesser):
    """Return a generation after tokens that a session holds, and others."""
    asked = {"max_tokens": 12, **FEATURES[feature]}
    if drafting == "draft":
        asked["draft"] = guesser
    elif drafting == "prompt":
        asked["draft"] = "prompt"
    return generate(session, tokens, history=history, **asked)


class Play:
    """A session, and the tokens that it holds."""

    def __init__(self, program, guessing, path):
        self.program, self.guessing, self.path = program, guessing, path
        self.session, self.held, self.pending = program.session(), [], []

    def generate(self, feature, drafting, count, said):
        tokens = [*self.pending, *said] or [BEGIN]
        if len(self.held) + len(tokens) + 14 > CAPACITY:
            self.reset()
            tokens = [BEGIN, *said]
        whole = [*self.held, *tokens]
        with self.guessing.session() as guesser, self.program.session() as fresh:
            run = made(self.session, tokens, self.held, feature, drafting, guesser)
            for _, _token in zip(range(count), run, strict=False):
                pass
            run.close()
            plain = made(fresh, whole, [], feature, "alone", None)
            expected = [token for _, token in zip(range(count), plain, strict=False)]
        assert run.tokens == expected
        self.held = [*whole, *run.tokens]
        self.pending = list(run.pending)
        ends = [t for t in self.pending if t not in run.tokens and t not in tokens]
        known = [t for t in self.pending if t not in ends]
        self.held = self.held[: len(self.held) - len(known)]
        assert len(self.held) == self.session.position.item()

    def rewind(self, count):
        count = min(count, len(self.held))
        self.session.rewind(count)
        if count:
            del self.held[len(self.held) - count :]
            self.pending = []

    def fork(self):
        session = self.session.fork()
        self.session.close()
        self.session = session

    def save(self):
        self.session.save(self.path)
        self.session.close()
        self.session = self.program.restore(self.path)

    def reset(self):
        self.session.reset()
        self.held, self.pending = [], []


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["float32", "int8"]),
    program=st.lists(steps, min_size=1, max_size=8),
)
def test_a_generation_depends_on_the_tokens_alone(
    programs, tmp_path_factory, kind, program
):
    path = tmp_path_factory.mktemp("saved") / "s.kvs"
    play = Play(programs[kind], programs["draft"], path)
    for name, *given_arguments in program:
        getattr(play, name)(*given_arguments)
    play.session.close()


prompts = st.lists(st.integers(3, 400), min_size=1, max_size=9)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["float32", "int8"]),
    feature=st.sampled_from(sorted(FEATURES)),
    drafting=st.sampled_from(["draft", "prompt"]),
    turns=st.lists(
        st.tuples(st.lists(prompts, min_size=3, max_size=3), st.integers(1, 12)),
        min_size=1,
        max_size=2,
    ),
)
def test_rows_with_guesses_are_as_alone(programs, kind, feature, drafting, turns):
    """Turns of three rows, of which each may be left early."""
    asked = {"max_tokens": 12, **FEATURES[feature]}
    seed = asked.pop("seed", 0)
    texts, pending = [[BEGIN]] * ROWS, [(BEGIN,)] * ROWS
    program = programs[kind]
    with (
        program.session(batch=ROWS) as session,
        programs["draft"].session(batch=ROWS) as guesser,
    ):
        for said, count in turns:
            held = [t[: len(t) - len(p)] for t, p in zip(texts, pending, strict=True)]
            given_prompts = [[*p, *s] for p, s in zip(pending, said, strict=True)]
            texts = [[*t, *p] for t, p in zip(held, given_prompts, strict=True)]
            run = generate(
                session,
                given_prompts,
                history=held,
                draft=guesser if drafting == "draft" else "prompt",
                seed=seed,
                **asked,
            )
            for _, _step in zip(range(count), run, strict=False):
                pass
            run.close()
            for row, text in enumerate(texts):
                with program.session() as fresh:
                    plain = generate(fresh, text, seed=seed + row, **asked)
                    tokens = [t for _, t in zip(range(count), plain, strict=False)]
                assert run.tokens[row] == tokens
                assert run.is_complete[row] == plain.is_complete
            pending = run.pending
            whole = zip(texts, run.tokens, pending, session.position, strict=True)
            texts = [with_stop([*t, *a], p, held) for t, a, p, held in whole]


def with_stop(text, pending, held):
    """Return a text with the stop token, if one is pending after what is held."""
    text = text if text[held:] == list(pending) else [*text, pending[-1]]
    assert text[held:] == list(pending)
    return text
