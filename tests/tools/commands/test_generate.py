import subprocess
import sys
from pathlib import Path

import pytest
import tiny_decoder

from kvc.compiler import compile_program
from kvc.runtime import generate, load

KVC = Path(sys.executable).parent / "kvc"


def test_stdout_gets_exactly_what_is_generated(tiny):
    done = subprocess.run(
        [KVC, "generate", tiny, "def", "-n", "8"], capture_output=True, check=True
    )
    with load(tiny) as program, program.session() as session:
        expected = bytes(generate(session, list(b"def"), max_tokens=8))
    assert done.stdout == expected
    assert b"prefill" in done.stderr
    assert b"tokens/s (3 tokens)" in done.stderr


def test_it_stops_when_the_cache_is_full(kvc, tiny):
    result = kvc("generate", tiny, "abcd")
    assert result.exit_code == 0
    assert len(result.stdout_bytes) == 24 - 4 + 1 or len(result.stdout_bytes) == 24 - 4
    assert "the cache is full" in result.stderr


def test_a_prompt_longer_than_the_cache_is_an_error(kvc, tiny):
    result = kvc("generate", tiny, "x" * 25)
    assert result.exit_code == 1
    assert "the cache holds 24" in result.stderr
    assert result.stdout == ""


def test_sampling_repeats_with_a_seed(kvc, tiny):
    options = ("generate", tiny, "a", "-n", 8, "--temperature", 100, "--seed")
    first, again, other = (kvc(*options, s).stdout_bytes for s in (1, 1, 2))
    assert first == again != other


@pytest.fixture(scope="module")
def untold(tmp_path_factory):
    """The path of a decoder without a tokenizer."""
    path = tmp_path_factory.mktemp("untold") / "untold.kvc"
    spec = tiny_decoder.untold()
    compile_program(spec.model, spec.methods).save(path)
    return path


def test_without_a_tokenizer_the_prompt_is_token_ids(kvc, untold):
    ids = kvc("generate", untold, "1 2,3", "-n", 4).stdout.split()
    assert len(ids) == 4
    assert all(0 <= int(i) < 256 for i in ids)
    result = kvc("generate", untold, "def ")
    assert result.exit_code == 1
    assert "expected token ids such as '1 15 8'" in result.stderr


def test_a_token_that_the_model_does_not_have_is_an_error(kvc, untold):
    result = kvc("generate", untold, "1 300")
    assert result.exit_code == 1
    assert "expected tokens of 0 to 255, got token 300" in result.stderr
    result = kvc("generate", untold, "99999999999999999999")
    assert result.exit_code == 1
    assert "got 99999999999999999999" in result.stderr


def test_a_bundle_without_roles_says_so(kvc, tmp_path, monkeypatch):
    (tmp_path / "plain_model.py").write_text(
        "import torch\n"
        "from kvc.compiler import Method, ModelSpec\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2\n"
        "def factory():\n"
        "    return ModelSpec(Twice(), (Method('forward', args=(torch.zeros(2),)),))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert kvc("compile", "plain_model:factory").exit_code == 0
    result = kvc("generate", "factory.kvc", "1")
    assert result.exit_code == 1
    assert "role" in result.stderr


def test_residency_is_told_on_stderr_after_the_run(kvc, tiny):
    plain = kvc("generate", tiny, "def", "-n", 4)
    result = kvc("generate", tiny, "def", "-n", 4, "--residency", "--mode", "read")
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes == plain.stdout_bytes
    figures, memory = result.stderr.split("memory of the data, loaded with mode read")
    assert "tokens/s" in figures
    assert "prefill + decode" in memory
    assert "memory of the data" not in plain.stderr
