"""The library alone: its settings, and the bits of kernels built for other systems.

Builds take minutes, and CMake, ziglang, Debian's g++-aarch64-linux-gnu and qemu-user.
They are run where KVC_BUILD_LIBRARY=1 asks for them.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ASKED = os.environ.get("KVC_BUILD_LIBRARY") == "1"
QEMU = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")


def test_the_library_is_compiled_with_the_settings_of_the_python_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    cmake = (ROOT / "runtime_py" / "native" / "CMakeLists.txt").read_text()
    elsewhere = {"-std=c++17", "-O3"}  # CMake has the standard and levels of its own
    assert {*module["extra-compile-args"]} - elsewhere <= {*cmake.split()}


def run(*command: str | Path) -> None:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "steps"
    run(sys.executable, "tools/dev/record_steps.py", path)
    return path


@pytest.mark.skipif(not ASKED, reason="KVC_BUILD_LIBRARY=1 asks for it")
@pytest.mark.parametrize(
    ("target", "compiler", "emulator", "most"),
    [
        ("x86_64-linux", "gcc", (), "0"),
        ("x86_64-linux", "zig", (), "0"),
        # The math library of aarch64 has other last bits of a few functions.
        ("aarch64-linux", "gcc", QEMU, "1e-7"),
        ("aarch64-linux", "zig", QEMU, "1e-7"),
    ],
)
def test_another_build_gives_the_same_bits(
    tmp_path: Path,
    recorded: Path,
    target: str,
    compiler: str,
    emulator: tuple[str, ...],
    most: str,
):
    build = (sys.executable, "tools/dev/build_library.py", "--replay")
    run(*build, "--target", target, "--compiler", compiler, "--output", tmp_path)
    run(*emulator, tmp_path / "build" / "replay_steps", recorded, most)
