"""Compiled shaders are what their sources say."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import vulkan_here

sys.path.insert(0, str(Path(__file__).parents[4] / "tools" / "dev"))
import shaders

VERSION = "12.0.0"  # of the compiler that made what is checked in


def test_sources_and_compiled_shaders_have_changed_together() -> None:
    made = json.loads((shaders.FOLDER / "made.json").read_text())
    assert made == shaders.describe()
    assert {p.stem for p in shaders.FOLDER.glob("*.comp")} == {
        p.stem for p in shaders.FOLDER.glob("*.spv")
    }


def test_a_change_of_either_is_noticed(tmp_path: Path) -> None:
    folder = shutil.copytree(shaders.FOLDER, tmp_path / "shaders")
    before = shaders.describe(folder)
    for name in ("step.glsl", "rows.spv"):
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    changed = shaders.describe(folder).items() - before.items()
    assert {name for name, _ in changed} == {"step.glsl", "rows.spv"}


def test_the_compiler_makes_what_is_checked_in() -> None:
    missing = "apt install glslang-tools spirv-tools"
    if shutil.which("glslangValidator") is None or shutil.which("spirv-val") is None:
        assert not vulkan_here.REQUIRED, missing
        pytest.skip(f"no compiler of shaders: {missing}")
    command = ["glslangValidator", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if VERSION not in told:
        pytest.skip(f"another compiler makes other bytes: {told.splitlines()[0]}")
    assert shaders.differing() == []
