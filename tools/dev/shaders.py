"""Compile the shaders of the backend `vulkan`: SPIR-V beside each GLSL source.

Run it after each change of a source: `python tools/dev/shaders.py`. It needs
`glslangValidator` and `spirv-val` (Debian: glslang-tools 12.0.0, spirv-tools). The
digests of sources and compiled shaders are written to `made.json`. A test compares
them, so that no source can change without its shader. `--check` compiles into memory
and compares.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "runtime_py" / "delegates" / "vulkan" / "shaders"
TARGET = "vulkan1.2"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe(folder: Path = FOLDER) -> dict[str, str]:
    """Return the digest of each source and each compiled shader, by file name."""
    suffixes = (".comp", ".glsl", ".spv")
    paths = sorted(path for path in folder.iterdir() if path.suffix in suffixes)
    return {path.name: digest(path) for path in paths}


def compile_shader(source: Path, target: Path) -> None:
    command = ["glslangValidator", "-V", "--quiet", "--target-env", TARGET]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    command = ["spirv-val", "--target-env", TARGET, "--scalar-block-layout"]
    subprocess.run([*command, str(target)], check=True)


def differing(folder: Path = FOLDER) -> list[str]:
    """Return the names of compiled shaders that differ from their compiled sources."""
    found = []
    with tempfile.TemporaryDirectory() as made:
        for source in sorted(folder.glob("*.comp")):
            target = Path(made) / f"{source.stem}.spv"
            compile_shader(source, target)
            stored = source.with_suffix(".spv")
            if not stored.exists() or stored.read_bytes() != target.read_bytes():
                found.append(stored.name)
    return found


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        found = differing()
        sys.exit(f"out of date: {', '.join(found)}" if found else 0)
    for source in sorted(FOLDER.glob("*.comp")):
        compile_shader(source, source.with_suffix(".spv"))
    (FOLDER / "made.json").write_text(json.dumps(describe(), indent=1) + "\n")


if __name__ == "__main__":
    main()
