"""`kvc compile --check` of trained models, and what `kvc check` notices of them."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kvc.runtime import load
from kvc.schema.errors import CheckFailed
from kvc.tools.checks.calls import sample_results
from kvc.tools.checks.expected import FILE, compare, expected_of
from kvc.tools.cli import main

RECIPES = (
    "cpu_fp32",
    "cpu_bf16",
    "cpu_q8",
    "cpu_q4",
    "xnnpack_fp32",
    "xnnpack_q8",
    "xnnpack_q4",
)


def kvc(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ["smollm2", "minilm", "whisper"])
def test_a_trained_model_passes(folder, tmp_path, model, recipe):
    path = tmp_path / "model.kvc"
    task = ("--task", "embed") if model == "minilm" else ()
    given = ("compile", folder(model), *task, "--recipe", recipe, "--check", "-q")
    made = kvc(*given, "-o", path)
    assert made.exit_code == 0, made.output
    checked = kvc("check", path)
    assert checked.exit_code == 0, checked.output


@pytest.fixture(scope="module")
def smollm2(folder, tmp_path_factory) -> Path:
    """A bundle with results of sample calls."""
    path = tmp_path_factory.mktemp("checks") / "model.kvc"
    given = ("compile", folder("smollm2"), "--recipe", "cpu_q8", "--check", "-q")
    made = kvc(*given, "-o", path)
    assert made.exit_code == 0, made.output
    return path


@pytest.mark.parametrize(
    ("weight", "other"),
    [
        ("self_attn.v_proj.weight.int8_blocks", lambda weight: -weight),
        ("mlp.down_proj.weight.int8_blocks_scale", lambda scale: scale * 2),
    ],
)
def test_one_weight_or_scale_of_the_first_layer_is_noticed(smollm2, weight, other):
    name = f"model.layers.0.{weight}"
    with load(smollm2) as program, program.data[name] as buffer:
        numbers = buffer.private_array().reshape(-1)
        at = np.abs(numbers.astype(np.float32)).argmax()
        numbers[at] = other(numbers[at])
        expected = expected_of(program.files[FILE], program.provenance.recipe)
        results = list(sample_results(program, expected.calls))
    with pytest.raises(CheckFailed, match="after two tokens"):
        compare(expected, results)
