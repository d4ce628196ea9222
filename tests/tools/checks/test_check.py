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
from kvc.tools.checks.calls import Result, arguments_at, sample_results
from kvc.tools.checks.expected import FILE, Expected, compare, expected_of, with_results
from kvc.tools.checks.readings import Moves, read


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


def checked_again(program, content):
    """Make the calls that a file is about, and compare."""
    expected = expected_of(content, program.provenance.recipe)
    return compare(expected, sample_results(program, expected.calls))


def test_this_machine_computes_the_same(kvc, path):
    done = kvc("check", path)
    assert done.exit_code == 0, done.output
    assert "computes here what it did when compiled: " in done.output
    assert len(done.output.splitlines()) == 1
    told = json.loads(kvc("check", path, "--json").output)
    assert told["ok"]
    assert told["largest"] < told["allowed"] / 2
    exact = kvc("check", path, "--reference")
    assert "equal to the last digit kept" in exact.output


def told_of(content):
    return json.loads(content)["recipes"]["cpu_q8"]["results"]


def test_what_a_language_model_is_asked(content):
    told = told_of(content)
    short = [one["name"] for one in told if one["short"]]
    assert short[-1] == "two tokens"
    assert "layers.0.attn.k_cache after two tokens" in short
    assert {len(one["rows"]) for one in told if one["short"]} == {8}
    long = [one["name"] for one in told if not one["short"]]
    assert long[:7] == [
        "a prompt",
        "its beginning, elsewhere",
        "token 1 after it",
        "token 2 after it",
        "token 3 after it",
        "its end, token by token",
        "the same tokens after going back",
    ]
    by_name = {one["name"]: one["rows"] for one in told}
    whole, pieces = by_name["a prompt"], by_name["its end, token by token"]
    assert pieces[0] == pytest.approx(whole[0], rel=0.05, abs=0.05)
    again = by_name["the same tokens after going back"]
    assert again[0] == pytest.approx(by_name["token 3 after it"][0], rel=1e-3)
    assert len(by_name["layers.0.attn.k_cache in the end"]) == 15


def changed(content, name, change):
    told = json.loads(content)
    results = told["recipes"]["cpu_q8"]["results"]
    (one,) = (one for one in results if one["name"] == name)
    change(one)
    return json.dumps(told).encode()


def move(share):
    """Return what moves all rows of a result, by a share of what is allowed."""

    def change(one):
        allowed = max(0.01, 3 * one["coarse"])
        one["rows"] = [
            [value * (1 + share * allowed) for value in row] for row in one["rows"]
        ]

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (move(1.5), "token 2 after it differs from the"),
        (lambda one: one.update(kind="float32[1, 3]"), r"expected float32\[1, 3\]"),
        (lambda one: one["rows"].append([0.0] * 6), "token 2 after it"),
        (lambda one: one.update(name="token 7"), "the list of results"),
    ],
)
def test_a_result_that_differs_is_noticed(path, content, change, problem):
    other = changed(content, "token 2 after it", change)
    with load(path) as program, pytest.raises(CheckFailed, match=problem):
        checked_again(program, other)


def test_rounding_is_not_a_difference(path, content):
    other = changed(content, "token 2 after it", move(0.7))
    with load(path) as program:
        found = checked_again(program, other)
    assert found.name == "token 2 after it"
    assert found.largest == pytest.approx(0.7 * found.allowed, rel=0.2)


def test_a_small_difference_in_most_short_calls_is_noticed(path, content):
    def tip(count):
        def change(one):
            assert max(one["fine"]) < 1e-5, "no call tips anything over there"
            for row in one["rows"][:count]:
                row[:] = [value * 1.0005 for value in row]

        return change

    name = "layers.0.attn.k_cache after two tokens"
    with load(path) as program:
        checked_again(program, changed(content, name, tip(3)))
        with pytest.raises(CheckFailed, match=f"{name} .* half of 8 calls"):
            checked_again(program, changed(content, name, tip(6)))


def test_a_wrong_bundle_ends_with_1(kvc, checked, content, tmp_path):
    spec = factory()
    bundle = compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states)
    other = changed(content, "a prompt", move(5))
    path = tmp_path / "other.kvc"
    bundle.with_files({FILE: other}).save(path)
    done = kvc("check", path)
    assert done.exit_code == 1
    assert "a prompt differs from the reference result" in done.output
    done = kvc("check", path, "--json")
    assert done.exit_code == 1
    assert "a prompt differs from the reference result" in done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["ok"], told["result"]) == (2, False, "a prompt")
    assert told["expected"] != told["found"]
    with pytest.raises(BadFile, match="has a file of this name"):
        checked.with_files({FILE: other})


def one_result(**changes):
    """Return a file of one result, with fields that are other ones."""
    fields = {"name": "a", "kind": "b", "short": False, "coarse": 0, "fine": []}
    one = fields | {"rows": [[0] * 6]} | changes
    recipe = {"calls": [], "results": [one]}
    return json.dumps({"version": 3, "recipes": {"cpu_q8": recipe}}).encode()


def test_a_file_of_one_result():
    expected = expected_of(one_result(), "cpu_q8")
    assert expected.readings[0].rows.shape == (1, 6)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"version": 3, "recipes": 3}',
        b'{"version": 3, "recipes": {"cpu_q8": {"calls": [], "results": 3}}}',
        b'{"version": 2, "results": []}',
        b"[" * 100_000,
        one_result(rows=[[0] * 5]),
        one_result(rows=[[float("nan")] * 6]),
        one_result(coarse=float("inf")),
        one_result(short=True),
        one_result(fine=[0.1]),
        one_result(coarse=[]),
    ],
)
def test_a_file_that_says_something_else(damaged):
    with pytest.raises(NoCheck, match="compile it again"):
        expected_of(damaged, "cpu_q8")


def test_a_file_about_other_recipes(content):
    with pytest.raises(NoCheck, match="nothing about the recipe vulkan_q8"):
        expected_of(content, "vulkan_q8")


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
        results = {one.name: one.given for one in sample_results(program, ())}
        checked_again(program, program.files[FILE])
    assert len(results) == 7
    assert results["total in the end"].shape == (3, 4)
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
        checked_again(program, program.files[FILE])
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
        told = {one.name: one.given for one in sample_results(program, ())}
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
    readings = read([Result("going back", "NotRewindable")])
    expected = Expected((), readings, (Moves(0.0, ()),))
    same, other = (
        [Result("going back", kind)] for kind in ("NotRewindable", "Poisoned")
    )
    assert compare(expected, same).largest == 0
    with pytest.raises(CheckFailed, match="expected NotRewindable, found Poisoned"):
        compare(expected, other)
