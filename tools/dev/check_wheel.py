"""Build the wheel from a clean copy, and test it outside of the repository.

The wheel is installed into a new virtual environment, which shares the dependencies of
the running environment. The demo model is compiled, verified, dumped and run in an
empty folder. Finally the compiled bundle generates text in an environment that has only
the wheel's requirements without extras, and so no torch.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).resolve().parents[2]
WHERE = """
import importlib, sys
for name in sys.argv[1:]:
    path = importlib.import_module(name).__file__
    assert path.startswith(sys.prefix), f"{name} comes from {path}"
"""
LOOK = "import importlib.util as u; print(u.find_spec('torch'))"


def main() -> None:
    """Build the wheel, install it and test it."""
    with tempfile.TemporaryDirectory(prefix="kvc-wheel-") as folder:
        work = Path(folder)
        wheel = build(work)
        check_names(wheel)
        whole = sysconfig.get_paths()["purelib"]
        try_out(install(wheel, work / "venv", whole), work / "empty")
        needed = link_required(wheel, work / "needed")
        run_without_torch(install(wheel, work / "light", str(needed)), work / "empty")


def build(work: Path) -> Path:
    """Build a wheel from the files that git tracks or would add."""
    for name in run(ROOT, "git", "ls-files", "-coz", "--exclude-standard").split("\0"):
        source, target = ROOT / name, work / "source" / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(source, target)
    lend_kernels(work / "source")
    pip = (sys.executable, "-m", "pip")
    build_flags = ("--no-deps", "--no-build-isolation", "-q", "-w", str(work))
    run(work, *pip, "wheel", str(work / "source"), *build_flags)
    (wheel,) = work.glob("*.whl")
    return wheel


def lend_kernels(source: Path) -> None:
    """Copy this environment's compiled kernels to the build folder of setuptools.

    Compiling the kernels takes a minute. setuptools compiles them again if one of their
    sources is newer.
    """
    tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    target = source / "build" / f"lib.{tag}" / "kvc" / "runtime" / "native"
    target.mkdir(parents=True)
    for built in (ROOT / "runtime_py" / "native").glob("_kernels*.so"):
        copy2(built, target)


def check_names(wheel: Path) -> None:
    """Check that the wheel contains only the package."""
    names = zipfile.ZipFile(wheel).namelist()
    other = [n for n in names if not n.startswith(("kvc/", "kvc-"))]
    assert not other, f"the wheel holds {other}"
    dev = [n for n in names if "/dev/" in n or "/tests/" in n]
    assert not dev, f"the wheel holds {dev}"


def link_required(wheel: Path, folder: Path) -> Path:
    """Fill a folder with links to a wheel's requirements without extras; return it."""
    folder.mkdir()
    (kvc,) = distributions(path=[str(wheel)])
    wanted, seen = list(kvc.requires or []), set()
    while wanted:
        text = wanted.pop()
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
        if name in seen or ";" in text:  # required by an extra, or on another system
            continue
        seen.add(name)
        found = distribution(name)
        wanted += found.requires or []
        tops = {file.parts[0] for file in found.files or []}
        for top in tops - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(found.locate_file(top))))
    return folder


def install(wheel: Path, home: Path, packages: str) -> Path:
    """Install the wheel in an environment that also imports packages from a folder."""
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    run(home, *pip, "install", "--no-deps", "--no-index", "-q", str(wheel))
    site = run(home, str(python), "-c", "import site; print(*site.getsitepackages())")
    # Path files inside that folder are not read, so this repository's editable
    # install is not imported.
    (Path(site.strip()) / "borrowed.pth").write_text(packages + "\n")
    return python.parent


def try_out(bin_folder: Path, empty: Path) -> None:
    """Compile, verify, dump and run the demo model with the installed wheel."""
    empty.mkdir()
    packages = (
        "kvc",
        "kvc.schema",
        "kvc.recipes",
        "kvc.compiler",
        "kvc.runtime",
        "kvc.tools",
    )
    run(empty, str(bin_folder / "python"), "-c", WHERE, *packages)
    kvc = str(bin_folder / "kvc")
    assert run(empty, kvc, "--version").startswith("kvc 0.")
    run(empty, kvc, "recipes")
    run(empty, kvc, "compile", "demo", "--recipe", "xnnpack_q8", "-o", "demo.kvc")
    run(empty, kvc, "verify", "demo.kvc")
    run(empty, kvc, "dump", "demo.kvc")
    text = run(empty, kvc, "generate", "demo.kvc", "def ", "--max-tokens", "8")
    assert text, "nothing was generated"
    run(empty, kvc, "compile", "demo", "--recipe", "cpu_q8", "-o", "native.kvc")


def run_without_torch(bin_folder: Path, folder: Path) -> None:
    """Run the compiled bundle in an environment without torch."""
    python, kvc = str(bin_folder / "python"), str(bin_folder / "kvc")
    found = run(folder, python, "-c", LOOK)
    assert found.strip() == "None", f"torch is at {found}"
    run(folder, kvc, "dump", "native.kvc")
    run(folder, kvc, "dump", "native.kvc", "--html", "native.html")
    options = ("--max-tokens", "8", "--no-reference")
    text = run(folder, kvc, "generate", "native.kvc", "def ", *options)
    assert text, "nothing was generated without torch"


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder and return what it printed.

    Raises:
        SystemExit: the command failed; the message contains its output.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
