"""Faults in the machine that checks a bundle: one weight, one scale, one cache row."""

import json

import numpy as np
import pytest

from kvc.compiler import compile_program
from kvc.compiler.models.demo import demo
from kvc.runtime import load
from kvc.runtime.generation.feeding import Feeder
from kvc.schema.container import BundleFile
from kvc.schema.errors import CheckFailed
from kvc.tools.checks import calls
from kvc.tools.checks.expected import FILE, compare, expected_of, with_results


def saved(recipe, folder):
    """Return the demo model with results of sample calls."""
    spec = demo()
    bundle = compile_program(spec.model, spec.methods, recipe, states=spec.states)
    path = folder / f"{recipe}.kvc"
    with_results(bundle, lambda *stage: None).save(path)
    return path


@pytest.fixture(scope="module")
def own_kernels(tmp_path_factory):
    return saved("cpu_q8", tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def xnnpack(tmp_path_factory):
    return saved("xnnpack_q8", tmp_path_factory.mktemp("faults"))


def check(program):
    expected = expected_of(program.files[FILE], program.provenance.recipe)
    compare(expected, calls.sample_results(program, expected.calls))


def check_with_other(path, name, change):
    """Check a bundle of which one number is another one in memory."""
    with load(path) as program, program.data[name] as buffer:
        numbers = buffer.private_array().reshape(-1)
        at = np.random.default_rng(3).integers(numbers.size)
        numbers[at] = change(numbers[at])
        check(program)


def other_weight(weight):
    return weight - 64 if weight > 0 else weight + 64


@pytest.mark.parametrize("weight", ["attn.k", "attn.v", "attn.o", "ffn.up", "ffn.down"])
def test_one_weight_that_is_wrong_in_memory_is_noticed(own_kernels, weight):
    name = f"layers.0.{weight}.weight.int8_blocks"
    with pytest.raises(CheckFailed, match=r"layers\.[01].* after two tokens .* half"):
        check_with_other(own_kernels, name, other_weight)


def test_weights_that_are_read_and_not_changed_pass(own_kernels):
    name = "layers.0.attn.k.weight.int8_blocks"
    check_with_other(own_kernels, name, lambda weight: weight)


@pytest.mark.parametrize("weight", ["attn.k", "attn.v", "ffn.up", "ffn.down"])
@pytest.mark.parametrize("layer", [0, 4])
def test_one_scale_that_is_wrong_in_memory_is_noticed(own_kernels, layer, weight):
    name = f"layers.{layer}.{weight}.weight.int8_blocks_scale"
    with pytest.raises(CheckFailed, match="two tokens"):
        check_with_other(own_kernels, name, lambda scale: scale * 2)


@pytest.mark.parametrize("weight", ["attn.k", "ffn.down"])
def test_one_scale_that_a_library_packs_wrong_is_noticed(xnnpack, weight):
    check_with_other(xnnpack, "layers.0.attn.k.weight.int8_scale", lambda scale: scale)
    name = f"layers.0.{weight}.weight.int8_scale"
    with pytest.raises(CheckFailed, match="after two tokens"):
        check_with_other(xnnpack, name, lambda scale: scale * 2)


class WritesElsewhere(Feeder):
    """After a prompt, one row of the last layer's keys is that of another token."""

    def feed_prompts(self, prompts):
        logits = super().feed_prompts(prompts)
        if len(prompts[0]) > 7:
            names = list(self.session.state)
            number = max(i for i, name in enumerate(names) if "k_cache" in name)
            keys = self.session._usage.states.current(number).view()
            keys[:, :, 7] = keys[:, :, 3]
        return logits


@pytest.mark.parametrize("made", ["own_kernels", "xnnpack"])
def test_one_cache_row_that_is_wrong_is_noticed(request, monkeypatch, made):
    path = request.getfixturevalue(made)
    monkeypatch.setattr(calls, "Feeder", WritesElsewhere)
    with load(path) as program, pytest.raises(CheckFailed) as failed:
        check(program)
    assert failed.value.result == "layers.4.attn.k_cache in the end"


def test_one_byte_that_is_wrong_in_the_file_is_told_by_its_digest(
    kvc, own_kernels, tmp_path
):
    name = "layers.3.ffn.down.weight.int8_blocks"
    with BundleFile.open(own_kernels) as bundle:
        (named,) = (one for one in bundle.program.names if one.name == name)
        at = bundle.program.blobs[named.blob].offset + 1000
    content = bytearray(own_kernels.read_bytes())
    content[at] ^= 1
    path = tmp_path / "damaged.kvc"
    path.write_bytes(content)
    done = kvc("check", path, "--json")
    assert done.exit_code == 1
    assert f"{name} is damaged" in done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["result"]) == (False, name)
