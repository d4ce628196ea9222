"""Paths of models are checked without torch."""

import json
import re
import subprocess
import sys

import pytest

from kvc.compiler.models import BUILTIN
from kvc.schema.errors import MissingPackage, UnsupportedModel
from kvc.tools.checkpoints import BUILT_IN, check_checkpoint, is_checkpoint


def test_names_that_are_built_in_are_those_of_the_compiler():
    assert tuple(BUILTIN) == BUILT_IN


def test_a_folder_does_not_hide_what_is_built_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "other").mkdir()
    assert [is_checkpoint(name) for name in ("demo", "other")] == [False, True]
    assert [is_checkpoint(name) for name in ("a.gguf", "a:b")] == [True, False]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "3", '{"model_type": "llama"}'])
def test_what_opening_tells_is_left_to_it(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    check_checkpoint(str(tmp_path))


def test_an_unknown_method_is_refused_without_torch(tmp_path):
    config = {"quantization_config": {"quant_method": "hqq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = "quantized by 'hqq', and kvc reads awq"
    with pytest.raises(UnsupportedModel, match=said):
        check_checkpoint(str(tmp_path))
    given = [sys.executable, "-X", "importtime", "-m", "kvc.tools", "compile"]
    done = subprocess.run(
        [*given, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert said in done.stderr
    assert re.search(r"\| +kvc.tools.checkpoints$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_missing_package_is_told_with_its_command(tmp_path, monkeypatch):
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    (tmp_path / "m.gguf").write_bytes(header)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackage, match=r"package gguf.*kvc.gguf"):
        check_checkpoint(str(tmp_path / "m.gguf"))


def test_a_name_that_is_nothing_is_told_without_torch(tmp_path):
    code = (
        "import sys\nfrom kvc.tools.cli import main\n"
        "try:\n    main(['compile', 'nothing'])\n"
        "finally:\n    print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "no model 'nothing': it is not built in" in done.stderr
    assert done.stdout == "False\n"
