"""Which sessions can guess for which, and models whose checks take few sizes."""

from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from drafting_models import Recurrent, Table, write_decoder, write_table
from summing_rows import summing_rows

from kvc.runtime import (
    BadSetting,
    NotRewindable,
    UnknownName,
    UnusableLogits,
    generate,
    load,
)


def counting(wrong=()):
    """Return logits [16, 16]: after n comes n + 1, but for those that are wrong."""
    rows = torch.zeros(16, 16)
    for token in range(16):
        rows[token, (token + (3 if token in wrong else 1)) % 16] = 5.0
    return rows


def key_of(argument):
    """Return what tells models apart that write the same bundle."""
    if not isinstance(argument, Table):
        return argument
    return type(argument), argument.rows.detach().numpy().tobytes()


@pytest.fixture(scope="module")
def program_of(tmp_path_factory):
    """Write and open each model once."""
    folder, made = tmp_path_factory.mktemp("drafts"), {}

    def program(write, *args, **options):
        key = (write, *map(key_of, args), *options.items())
        if key not in made:
            made[key] = load(write(folder / f"{len(made)}.kvc", *args, **options))
        return made[key]

    yield program
    for one in made.values():
        one.close()


@pytest.fixture
def opened(program_of):
    """Open sessions of models."""
    with ExitStack() as stack:

        def open_session(write, *args, **options):
            program = program_of(write, *args, **options)
            return stack.enter_context(program.session())

        yield open_session


@pytest.mark.parametrize("least", [1, 3, 5])
def test_checks_of_any_sizes_are_used_where_they_fit(opened, least):
    target = opened(write_table, Table(counting()), least)
    draft = opened(write_table, Table(counting(wrong=(5,))))
    sizes = []
    call = target.call

    def counted(name, tokens):
        sizes.append((name, tokens.shape[1]))
        return call(name, tokens)

    target.call = counted
    run = generate(target, [0], draft=draft, max_tokens=23)
    assert list(run) == [n % 16 for n in range(1, 24)]
    checked = {size for name, size in sizes if name == "check"}
    assert checked
    assert all(size >= least for size in checked)
    assert run.acceptance > 0.5
    assert target.position == draft.position == 23


def test_a_session_is_no_draft_of_itself(opened):
    target = opened(write_table, Table(counting()))
    with pytest.raises(BadSetting, match="draft: expected another session than"):
        generate(target, [1], draft=target)


def test_other_tokens_are_refused(opened):
    target = opened(write_table, Table(counting()))
    draft = opened(write_table, Table(torch.zeros(20, 20)))
    with pytest.raises(BadSetting, match=r"a model of 16 tokens, .* got one of 20"):
        generate(target, [1], draft=draft)


def test_a_target_that_cannot_check_is_refused(opened):
    target = opened(write_decoder, all_logits=False)
    with pytest.raises(UnknownName, match=r"role 'prefill_all'.* --all-logits"):
        generate(target, [1], draft=opened(write_table, Table(counting())))


@pytest.mark.parametrize("which", ["target", "draft"])
def test_what_cannot_go_back_is_refused_before_anything_runs(opened, which):
    kinds = {"target": Table, "draft": Table, which: Recurrent}
    target, draft = (opened(write_table, k(counting())) for k in kinds.values())
    with pytest.raises(NotRewindable, match="the state total cannot be rewound"):
        generate(target, [1], draft=draft)
    assert target.position == draft.position == 0


@pytest.mark.parametrize("count", [0, -1, 9, 2.5, True])
def test_an_impossible_number_of_guesses_is_refused(opened, count):
    target, draft = (opened(write_table, Table(counting())) for _ in range(2))
    with pytest.raises(BadSetting, match="draft_tokens: expected "):
        generate(target, [1], draft=draft, draft_tokens=count)
    with pytest.raises(BadSetting, match="draft_tokens: expected "):
        generate(target, [1], draft_tokens=count)


def test_a_number_of_guesses_without_a_draft_is_refused(opened):
    target = opened(write_table, Table(counting()))
    with pytest.raises(BadSetting, match="no value: there is no draft, got 4"):
        generate(target, [1], draft_tokens=4)
    with pytest.raises(
        BadSetting, match=r"draft: expected a session, or 'prompt', got 'd\.kvc'"
    ):
        generate(target, [1], draft="d.kvc")


def test_a_draft_that_holds_something_else_is_refused(opened):
    target, draft = (opened(write_table, Table(counting())) for _ in range(2))
    list(generate(target, [1, 2, 3], max_tokens=2))
    with pytest.raises(BadSetting, match=r"holds the same 4 tokens .* got 0 tokens"):
        generate(target, [5], draft=draft)


def test_a_prompt_of_both_may_begin_in_the_middle_of_a_history(opened):
    target, draft = (opened(write_table, Table(counting())) for _ in range(2))
    list(generate(target, [1, 2, 3], max_tokens=2))
    draft.read(np.array([[1, 2]]))
    run = generate(target, [5], draft=draft, history=[1, 2, 3, 4], max_tokens=9)
    assert list(run) == [6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert run.acceptance == 1
    assert draft.position == target.position == 13


def test_logits_that_cannot_be_used_come_up_where_they_would_without_a_draft(opened):
    """Tokens before them are handed out, though one call gave them all."""
    rows = counting()
    rows[3] = float("nan")
    target = opened(write_table, Table(rows))
    draft = opened(write_table, Table(counting()))
    run = generate(target, [0], draft=draft, max_tokens=9)
    assert [next(run) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(UnusableLogits, match="NaN is among them"):
        next(run)
    assert target.position == 4
    assert run.pending == ()


def likely_rows():
    """Return the scores of a target, and of a draft that has others."""
    torch.manual_seed(5)
    rows = torch.randn(16, 16)
    return rows, rows + 0.7 * torch.randn(16, 16)


@pytest.fixture(params=[0.7, pytest.param(1.6, marks=pytest.mark.exhaustive)])
def temperature(request):
    return request.param


def test_with_chance_tokens_come_as_often_as_the_target_has_them(opened, temperature):
    """Pearson's chi-squared of 6,000 pairs against the exact chances.

    Of 15 degrees of freedom 44.3 is exceeded once in 10,000 times.
    """
    rows, others = likely_rows()
    target, draft = (opened(write_table, Table(scores)) for scores in (rows, others))
    run = generate(
        target, [0], draft=draft, temperature=temperature, seed=11, max_tokens=6000
    )
    tokens = [0, *run]
    assert 0.1 < run.acceptance < 0.95
    assert unlikely(tokens, rows, temperature) < 44.3


def test_a_draft_whose_tokens_were_taken_unchecked_is_far_beyond_it(
    opened, temperature
):
    rows, others = likely_rows()
    draft = opened(write_table, Table(others))
    guesses = generate(draft, [0], temperature=temperature, seed=3, max_tokens=6000)
    assert unlikely([0, *guesses], rows, temperature) > 80


def unlikely(tokens, rows, temperature):
    """Return chi-squared of which token comes, whatever is before it."""
    scores = rows.double().numpy() / temperature
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    before = Counter(tokens[:-1])
    expected = sum(count * chances[token] for token, count in before.items())
    found = np.bincount(tokens[1:], minlength=16)
    return float(((found - expected) ** 2 / expected).sum())


def test_a_draft_of_several_rows_is_refused(opened, tmp_path):
    target = opened(write_table, Table(counting()), 1)
    summing_rows(tmp_path / "rows.kvc")
    with (
        load(tmp_path / "rows.kvc") as program,
        program.session(batch=2) as draft,
        pytest.raises(BadSetting, match=r"draft: expected a session of one row, got 2"),
    ):
        generate(target, [0], draft=draft)


def test_several_rows_need_methods_that_take_row_lengths(opened, tmp_path):
    summing_rows(tmp_path / "rows.kvc")
    with (
        load(tmp_path / "rows.kvc") as program,
        program.session(batch=2) as target,
        pytest.raises(UnknownName, match="A draft needs it"),
    ):
        generate(target, [[0], [1]], draft="prompt")


def test_a_list_of_one_prompt_has_a_draft(opened):
    target, draft = (opened(write_table, Table(counting()), 1) for _ in range(2))
    run = generate(target, [[0]], draft=draft, max_tokens=9)
    assert [step[0] for step in run] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert run.acceptance == 1
