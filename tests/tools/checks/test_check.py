"""`kvc check`: results of sample calls that a bundle carries, compared again."""

import json

import numpy as np
import pytest
import torch
from tiny_decoder import factory
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import BadFile, CheckFailed, NoCheck
from kvc.tools.checks.calls import arguments_at, sample_results
from kvc.tools.checks.expected import FILE, MOST, compare, expected_file
from kvc.tools.checks.made import with_results


@pytest.fixture(scope="module")
def checked():
    """A bundle, not saved, with results of sample calls."""
    spec = factory()
    bundle = compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states)
    return with_results(bundle, lambda *stage: None)


@pytest.fixture(scope="module")
def path(checked, tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "model.kvc"
    checked.save(path)
    return path


@pytest.fixture(scope="module")
def content(path):
    with load(path) as program:
        return program.files[FILE]


def test_this_machine_computes_the_same(kvc, path):
    done = kvc("check", path)
    assert done.exit_code == 0, done.output
    assert "computes here what it did when compiled: " in done.output
    assert len(done.output.splitlines()) == 1
    told = json.loads(kvc("check", path, "--json").output)
    assert told["ok"]
    assert told["largest"] < 1e-4
    exact = kvc("check", path, "--reference")
    assert "equal to the last digit kept" in exact.output


def test_what_a_language_model_is_asked(content):
    told = json.loads(content)["results"]
    assert [one["name"] for one in told] == [
        "a prompt",
        "its beginning, elsewhere",
        "token 1 after it",
        "token 2 after it",
        "token 3 after it",
        "its end, token by token",
        "the same tokens after going back",
    ]
    by_name = {one["name"]: one["values"] for one in told}
    whole, pieces = by_name["a prompt"], by_name["its end, token by token"]
    assert pieces == pytest.approx(whole, rel=1e-3)
    again = by_name["the same tokens after going back"]
    assert again == pytest.approx(by_name["token 3 after it"], rel=1e-3)


def changed(content, name, change):
    told = json.loads(content)
    (one,) = (one for one in told["results"] if one["name"] == name)
    change(one)
    return json.dumps(told).encode()


def move(share):
    def change(one):
        one["values"][5] += share * one["most"]

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (move(2 * MOST), "token 2 after it is not what the"),
        (lambda one: one["values"].__setitem__(3, float("nan")), "expected nan"),
        (lambda one: one.update(kind="float32[1, 3]"), r"expected float32\[1, 3\]"),
        (lambda one: one["values"].pop(), "token 2 after it"),
        (lambda one: one.update(name="token 7"), "the list of results"),
    ],
)
def test_a_result_that_differs_is_noticed(path, content, change, problem):
    other = changed(content, "token 2 after it", change)
    with load(path) as program, pytest.raises(CheckFailed, match=problem):
        compare(other, sample_results(program))


def test_rounding_is_not_a_difference(path, content):
    other = changed(content, "token 2 after it", move(MOST / 2))
    with load(path) as program:
        found = compare(other, sample_results(program))
    assert found.name == "token 2 after it"
    assert found.largest == pytest.approx(MOST / 2, rel=0.01)


def test_a_wrong_bundle_ends_with_1(kvc, checked, content, tmp_path):
    spec = factory()
    bundle = compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states)
    other = changed(content, "a prompt", move(0.5))
    path = tmp_path / "other.kvc"
    bundle.with_files({FILE: other}).save(path)
    done = kvc("check", path)
    assert done.exit_code == 1
    assert "a prompt is not what the reference gave" in done.output
    done = kvc("check", path, "--json")
    assert done.exit_code == 1
    assert "a prompt is not what the reference gave" in done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["ok"], told["result"]) == (1, False, "a prompt")
    assert told["expected"] != told["found"]
    with pytest.raises(BadFile, match="has a file of this name"):
        checked.with_files({FILE: other})


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"version": 2, "results": 3}',
        b'{"version": 2, "results": [{"name": "a", "kind": "b", "most": []}]}',
        b'{"version": 1, "results": []}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_says_something_else(damaged):
    with pytest.raises(NoCheck, match="compile it again"):
        compare(damaged, [])


def test_a_bundle_without_results(kvc, tiny):
    done = kvc("check", tiny)
    assert done.exit_code == 2
    assert "compile it with --check" in done.output


class Counting(nn.Module):
    """Adds what it is given to a state; gives it, and no number where that is odd."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))

    def forward(self, x, mask, names):
        self.total.add_(x)
        return {"root": (-self.total).sqrt(), "names": names + 1, "kept": mask}


def test_other_programs_are_called_one_method_after_the_other(tmp_path):
    arguments = (torch.ones(3, 4), torch.ones(4, dtype=torch.bool), torch.arange(5))
    bundle = compile_program(Counting(), [Method("forward", arguments)], "fp32")
    path = tmp_path / "counting.kvc"
    with_results(bundle, lambda *stage: None).save(path)
    with load(path) as program:
        results = dict(sample_results(program))
        compare(program.files[FILE], results.items())
    assert len(results) == 6
    first, second = (
        results[f"forward, {turn} call, result 0"] for turn in ("first", "second")
    )
    assert np.isnan(first).any()
    assert not np.array_equal(first, second, equal_nan=True)


class Encoder(nn.Module):
    """Looks tokens and kinds of tokens up; counts nothing else."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 8)
        self.kinds = nn.Embedding(3, 8)

    def forward(self, tokens, kinds, other):
        return self.table(tokens) + self.kinds(kinds) + other[:, :, None]


@pytest.mark.parametrize("recipe", ["fp32", "cpu_q8"])
def test_an_encoder_is_asked_tokens_of_all_its_vocabulary(tmp_path, recipe):
    arguments = (torch.zeros(2, 40, dtype=torch.int64),) * 3
    bundle = compile_program(Encoder(), [Method("forward", arguments)], recipe)
    path = tmp_path / "encoder.kvc"
    with_results(bundle, lambda *stage: None).save(path)
    with load(path) as program:
        method = program.methods["forward"]
        made = arguments_at(method, {}, np.random.default_rng(1))
        compare(program.files[FILE], sample_results(program))
    tokens, kinds, other = made.values()
    assert 200 < tokens.max() < 300
    assert set(kinds.flat) == {0, 1, 2}
    assert set(other.flat) == {0, 1}


class Row(nn.Module):
    """Gives rows of a table that numbers choose; it has only one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(1, 4))

    def forward(self, chosen):
        return self.table[chosen]

    def twice(self, x):
        return x * 2


def test_a_method_that_fails_does_not_hide_the_others(tmp_path):
    methods = [
        Method("forward", (torch.zeros(40, dtype=torch.int64),)),
        Method("twice", (torch.ones(3),)),
    ]
    with pytest.raises(NoCheck, match="no method takes made-up arguments"):
        with_results(compile_program(Row(), methods[:1], "fp32"), lambda *stage: None)
    path = tmp_path / "rows.kvc"
    with_results(compile_program(Row(), methods, "fp32"), lambda *stage: None).save(
        path
    )
    with load(path) as program:
        told = dict(sample_results(program))
    assert isinstance(told.pop("forward, first call"), str)
    assert list(told) == [
        f"twice, {turn} call, result 0" for turn in ("first", "second")
    ]


def test_the_option_of_compile(kvc, tmp_path):
    path = tmp_path / "tiny.kvc"
    model = ("compile", "tiny_decoder:factory", "--recipe", "cpu_fp32", "-q")
    done = kvc(*model, "--check", "-o", path)
    assert done.exit_code == 0, done.output
    assert kvc("check", path).exit_code == 0
    assert kvc("verify", path).exit_code == 0


def test_errors_are_kept_as_results():
    content = expected_file([("going back", "NotRewindable")])
    assert compare(content, [("going back", "NotRewindable")]).largest == 0
    with pytest.raises(CheckFailed, match="expected NotRewindable, found Poisoned"):
        compare(content, [("going back", "Poisoned")])
