"""How few files a call passes, and that ARCHITECTURE.md names each of them."""

import sys
from pathlib import Path

import numpy as np
from counting_model import counting_program
from hand_built import write_bundle

import kvc.runtime
from kvc.runtime import load

RUNTIME = Path(kvc.runtime.__file__).resolve().parent
HOUSE = RUNTIME.parent
KERNELS = ("runtime_py/kernels/", "schema/torch_ops/")


def files_of(call):
    """Return the files of kvc whose functions a call enters."""
    passed = set()

    def note(frame, event, _):
        if event == "call":
            passed.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    found = {Path(name).resolve() for name in passed if name.endswith(".py")}
    names = {str(p.relative_to(HOUSE)) for p in found if p.is_relative_to(HOUSE)}
    folders = ("runtime_py/", "schema/")
    return {name for name in names if name.startswith(folders)}


def test_a_call_passes_few_files_and_all_of_them_are_listed(tmp_path):
    path, token = write_bundle(tmp_path / "c.kvc", counting_program()), np.array([[7]])
    with load(path) as program, program.session() as session:
        session.step(token)
        passed = files_of(lambda: session.step(token))
    text = (HOUSE / "ARCHITECTURE.md").read_text()
    _, _, after = text.partition("## One token, file by file")
    listed, _, _ = after.partition("## One cache write")
    own = {name for name in passed if not name.startswith(KERNELS)}
    assert "runtime_py/sessions/engine.py" in own
    assert len(own) <= 18
    missing = {n for n in own if f"`{n.removeprefix('runtime_py/')}`" not in listed}
    assert not missing
