"""`kvc diff`: only what differs, and exit codes as diff(1) has them."""

import json
import re

import pytest
from named_bytes import SMALL, save_data
from sample_programs import write_sample
from tiny_decoder import factory

from kvc.compiler import compile_program


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """The same tiny decoder by two recipes, and once more with one weight changed."""
    folder = tmp_path_factory.mktemp("diff")
    for name, recipe in (("plain", "fp32"), ("q8", "cpu_q8"), ("other", "fp32")):
        spec = factory()
        if name == "other":
            spec.model.embed.weight.data[0] += 1
        bundle = compile_program(spec.model, spec.methods, recipe, states=spec.states)
        bundle.save(folder / f"{name}.kvc")
    return folder


def differences(kvc, old, new):
    done = kvc("diff", old, new, "--json")
    return done.exit_code, json.loads(done.stdout)


def test_a_bundle_equals_itself(kvc, bundles):
    done = kvc("diff", bundles / "plain.kvc", bundles / "plain.kvc")
    assert (done.exit_code, done.stdout) == (
        0,
        "equal: the same content, with the same digest\n",
    )


def test_a_changed_weight_is_all_that_differs(kvc, bundles):
    code, found = differences(kvc, bundles / "plain.kvc", bundles / "other.kvc")
    assert code == 1
    assert [change["what"] for change in found["file"]] == ["digest", "identity"]
    (weight,) = found["weights"]
    assert (weight["name"], weight["kind"]) == ("embed.weight", "changed")
    assert found["same_weights"] > 5
    for part in ("methods", "operators", "code", "states", "memory", "size"):
        assert not found[part], part


def test_a_recipe_changes_types_operators_and_sizes(kvc, bundles):
    code, found = differences(kvc, bundles / "plain.kvc", bundles / "q8.kvc")
    assert code == 1
    types = {one["name"]: one for one in found["weights"]}
    changed = types["layers.0.attn.q.weight"]
    assert changed["kind"] == "another type"
    (change,) = changed["changes"]
    assert change["old"].startswith("float32[")
    assert change["new"].startswith("int8[")
    assert changed["new_nbytes"] < changed["old_nbytes"] / 2
    linear = [one for one in found["operators"] if one["op"] == "aten::linear"]
    assert all(one["new"] == 0 < one["old"] for one in linear)
    assert {"prefill", "decode"} <= {m for one in linear for m in one["methods"]}
    text = kvc("diff", bundles / "plain.kvc", bundles / "q8.kvc").stdout
    assert re.search(r"^  recipe +fp32", text, re.MULTILINE)
    assert "kvc diff --code shows them" in text


def test_code_is_shown_when_asked_for(kvc, bundles):
    text = kvc("diff", bundles / "plain.kvc", bundles / "q8.kvc", "--code").stdout
    assert "kvc diff --code" not in text
    assert any(
        line.strip().startswith("-% = aten::linear(") for line in text.split("\n")
    )


def test_methods_and_states_of_one_alone(kvc, bundles, sample):
    _, found = differences(kvc, sample, bundles / "plain.kvc")
    states = {one["name"]: one for one in found["states"]}
    assert states["cache"]["kind"] == "only in the first"
    assert (states["cache"]["old_nbytes"], states["cache"]["new_nbytes"]) == (512, 0)
    assert any(one["kind"] == "only in the second" for one in found["states"])


def test_a_weight_that_moved_to_a_data_file(kvc, tmp_path):
    inside, outside = tmp_path / "inside.kvc", tmp_path / "outside.kvc"
    kvc("compile", "tiny_decoder:factory", "-q", "-o", inside)
    kvc("compile", "tiny_decoder:factory", "-q", "-o", outside, "--data", "external")
    _, found = differences(kvc, inside, outside)
    assert {one["kind"] for one in found["weights"]} == {"moved"}
    assert {c["old"] for one in found["weights"] for c in one["changes"]} == {
        "the bundle"
    }


def test_renamed_bytes_are_no_new_ones(kvc, tmp_path):
    save_data(tmp_path / "old.kvc", {"a": SMALL["a"]})
    save_data(tmp_path / "new.kvc", {"b": SMALL["a"]})
    _, found = differences(kvc, tmp_path / "old.kvc", tmp_path / "new.kvc")
    (weight,) = found["weights"]
    assert (weight["name"], weight["kind"]) == ("b", "renamed")
    assert weight["changes"][0]["old"] == "a"


def test_of_equal_bytes_each_is_renamed_once_and_the_rest_is_gone(kvc, tmp_path):
    raw = SMALL["a"]
    save_data(tmp_path / "old.kvc", {"a": raw, "b": raw, "c": raw})
    save_data(tmp_path / "new.kvc", {"x": raw, "y": raw})
    _, found = differences(kvc, tmp_path / "old.kvc", tmp_path / "new.kvc")
    kinds = {one["name"]: one["kind"] for one in found["weights"]}
    assert kinds == {"c": "only in the first", "x": "renamed", "y": "renamed"}
    renamed = [c["old"] for one in found["weights"] for c in one["changes"]]
    assert renamed == ["a", "b"]


def test_what_cannot_be_read_is_trouble(kvc, tmp_path, sample):
    done = kvc("diff", sample, tmp_path / "missing.kvc")
    assert done.exit_code == 2
    assert "missing.kvc: No such file" in done.output
    damaged = tmp_path / "damaged.kvc"
    write_sample(damaged)
    raw = bytearray(damaged.read_bytes())
    raw[-20] ^= 1
    damaged.write_bytes(raw)
    assert kvc("diff", damaged, sample).exit_code == 2
