"""Programs in C and C++ that use libkvc, compiled by the system's compiler."""

import importlib.machinery
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from libkvc_models import save
from ring_models import RingDecoder, Shape, ring_methods

import kvc.runtime.native
from kvc.runtime import load

ROOT = Path(__file__).parents[4]
LIBKVC = ROOT / "runtime_py" / "native" / "libkvc"


def compiled(source: Path, *options: str) -> Path:
    """Compile and link a program with the library of the kernels."""
    compiler = shutil.which("c++" if source.suffix == ".cc" else "cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    folder = Path(kvc.runtime.native.__file__).parent
    names = (f"_kernels{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    library = next(folder / name for name in names if (folder / name).exists())
    made = source.with_suffix("")
    command = [
        compiler,
        *options,
        "-I",
        LIBKVC,
        source,
        library,
        f"-Wl,-rpath,{folder}",
    ]
    subprocess.run([*command, "-o", made], check=True)
    return made


def ran(program: Path, *arguments: object) -> list[int]:
    """Return the numbers that a program prints."""
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(map(int, done.stdout.split()))


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    shape = Shape(windows=(5, None), slots=24, length=128)
    path = tmp_path_factory.mktemp("rings") / "model.kvc"
    return save(RingDecoder(shape), ring_methods(shape.longest), path)


def test_the_program_of_the_page_prints_what_python_computes(rings, tmp_path):
    page = (LIBKVC / "RUN_FROM_C.md").read_text()
    code = page.partition("```c\n")[2].partition("```")[0]
    source = tmp_path / "next_tokens.c"
    source.write_text(code)
    program = compiled(source, "-std=c99", "-Wall", "-Wextra", "-Werror")
    expected, tokens = [], np.array([[3, 1, 4, 1, 5]])
    with load(rings) as loaded, loaded.session() as session:
        logits = session.prefill(tokens)
        for _ in range(8):
            expected.append(int(np.argmax(logits)))
            logits = session.decode(np.array([expected[-1:]]))
    assert ran(program, rings, 3, 1, 4, 1, 5) == expected


def test_the_header_is_plain_c(tmp_path):
    source = tmp_path / "header.c"
    source.write_text(
        '#include "kvc.h"\nint main(void) { return kvc_version() < 1; }\n'
    )
    assert ran(compiled(source, "-std=c99", "-pedantic", "-Wall", "-Werror")) == []


@pytest.mark.linux
def test_a_decode_step_allocates_nothing(rings, tmp_path):
    source = tmp_path / "allocations.cc"
    source.write_text(Path(__file__).with_name("allocations.cc").read_text())
    program = compiled(source, "-std=c++17", "-O1")
    assert ran(program, rings) == [0]
