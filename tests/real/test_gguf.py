"""GGUF files of trained models: the same logits, and weights used as they are."""

import pydoc_data.topics
from pathlib import Path

import pytest
from click.testing import CliRunner
from real_models import Unavailable, gemma3_gguf, smollm2_gguf

from kvc.runtime import generate, load
from kvc.runtime.scoring import score_tokens
from kvc.runtime.tokenizers import tokenizer_of
from kvc.tools.cli import main

TEXT = pydoc_data.topics.topics["objects"][:6000]
FILES = {"smollm2": smollm2_gguf, "gemma3": gemma3_gguf}
# What the table of `kvc compile` says of each.
TOLD = {
    "smollm2": ["210 matrices of Q4_1 as they are", "1 matrix of Q8_0 as they are"],
    "gemma3": ["of Q4_K scales and minimums rounded to float16", "of Q5_0 as they are"],
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function: model, recipe -> bundle of its GGUF file, and what is told."""
    made = tmp_path_factory.mktemp("gguf")
    told: dict[Path, str] = {}

    def of(model: str, recipe: str) -> tuple[Path, str]:
        path = made / f"{model}-{recipe}.kvc"
        if path not in told:
            try:
                file = FILES[model]()
            except Unavailable as problem:
                pytest.skip(f"{model} cannot be had: {problem}")
            given = ["compile", str(file), "--recipe", recipe, "--all-logits"]
            done = CliRunner().invoke(main, [*given, "-o", str(path)])
            assert done.exit_code == 0, done.output
            told[path] = done.output
        return path, told[path]

    return of


def divergence(path: Path, exact: Path) -> float:
    """Return the divergence in nats of a bundle from another one."""
    with load(path) as program, load(exact) as reference:
        tokens = tokenizer_of(reference).encode(TEXT, special=False)
        return score_tokens(program, tokens, 512, against=reference).divergence.nats


def test_floats_are_those_that_transformers_reads(compiled, bundle):
    path, _ = compiled("smollm2", "cpu_fp32")
    assert abs(divergence(path, bundle("smollm2", "cpu_fp32"))) < 1e-6


def test_only_activations_are_rounded(compiled, bundle):
    exact = bundle("smollm2", "cpu_fp32")
    kept, told = compiled("smollm2", "cpu_q8")
    assert all(line in told for line in TOLD["smollm2"])
    assert divergence(kept, exact) <= 1.1 * divergence(
        bundle("smollm2", "cpu_q8"), exact
    )
    assert kept.stat().st_size < 106e6  # the file has 98 MB


def test_a_mixed_file_is_kept(compiled):
    exact, _ = compiled("gemma3", "cpu_fp32")
    kept, told = compiled("gemma3", "cpu_q8")
    assert all(line in told for line in TOLD["gemma3"])
    assert divergence(kept, exact) < 0.03


@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8"])
def test_a_file_continues_a_text(compiled, recipe):
    path, _ = compiled("smollm2", recipe)
    with load(path) as program, program.session() as session:
        said = "".join(
            generate(session, "The capital of France is", max_tokens=3).text()
        )
    assert "Paris" in said
