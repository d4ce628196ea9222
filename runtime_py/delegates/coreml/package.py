"""Write functions of MIL as an `.mlpackage`, by coremltools in a subprocess.

In: functions, and the arrays of their constants. Out: the package as a zip archive of
its files. coremltools gives random names to files in the package. This module replaces
these names by names derived from the contents, so that equal functions give equal
bytes.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreml import worker
from kvc.runtime.delegates.coreml.mil import (
    DTYPES,
    Data,
    Function,
    Input,
    Number,
    Numbers,
    Var,
)
from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import ExportFailed

VERSION: Final = "9.0"
PACKAGE: Final = "coremltools"
COREMLTOOLS: Final = LibraryPackage(
    f"{PACKAGE} {VERSION}", "coreml", {PACKAGE: VERSION}
)
SECONDS: Final = 1800
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip archive
_SPACE: Final = uuid.UUID("8f1a2f0e-6a0e-5b52-9d0c-6b7663000000")
_LAST_LINES: Final = 6
_MANIFEST: Final = "Manifest.json"


def package_of(
    functions: Sequence[Function], data: Callable[[int], Array], target: str
) -> bytes:
    """Return a package that has the given functions, as a zip archive.

    Args:
        functions: the functions; the first is Core ML's default.
        data: returns named data of the program by id.
        target: name of the target, for messages.

    Raises:
        MissingLibrary: coremltools is missing.
        ExportFailed: coremltools rejects the functions, crashes, or takes too long.
    """
    COREMLTOOLS.check()
    with tempfile.TemporaryDirectory(prefix="kvc-coreml-") as name:
        folder = Path(name)
        write_job(folder, functions, data, target)
        _run(folder, target)
        return _archive(folder / "model.mlpackage")


def write_job(
    folder: Path,
    functions: Sequence[Function],
    data: Callable[[int], Array],
    target: str,
) -> None:
    """Write the files that the subprocess reads.

    Raises:
        ExportFailed: an integer does not fit into 32 bits.
    """
    constants = {n: c for f in functions for n, c in f.constants.items()}
    # Names may be longer than file names can be.
    files = {name: f"{number}.bin" for number, name in enumerate(constants)}
    job = {
        "paths": [
            path for path in sys.path if path
        ],  # the paths on which coremltools was found
        "functions": [_function(function) for function in functions],
        "constants": {n: (c.dtype, c.shape, files[n]) for n, c in constants.items()},
    }
    (folder / "job.json").write_text(json.dumps(job))
    for name, constant in constants.items():
        stored(constant, data, target).tofile(folder / files[name])


def stored(
    constant: Data | Numbers, data: Callable[[int], Array], target: str
) -> Array:
    """Return a constant's elements as stored in the package.

    Raises:
        ExportFailed: an integer does not fit into 32 bits.
    """
    if isinstance(constant, Numbers):
        return constant.array
    held = data(constant.data)
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(held.astype(DTYPES[constant.dtype]))
    if held.dtype.kind == "i" and not np.array_equal(made, held):
        what = f"constant {constant.name!r}"
        raise ExportFailed(target=target, what=what, reason="it has more than 32 bits")
    return made.reshape(constant.shape)


def _function(function: Function) -> Mapping[str, object]:
    return {
        "name": function.name,
        "inputs": [_told(var) for var in function.inputs],
        "states": [_told(var) for var in function.states],
        "calls": [
            {
                "kind": call.kind,
                "result": _told(call.result),
                "inputs": {name: _input(given) for name, given in call.inputs},
            }
            for call in function.calls
        ],
        "outputs": [var.name for var in function.outputs],
    }


def _told(var: Var) -> tuple[str, str, tuple[int, ...]]:
    return var.name, var.dtype, var.shape


def _input(given: Input) -> Mapping[str, object]:
    """Return an input of a call as JSON; the only key is the kind of the input."""
    match given:
        case Var() | Data() | Numbers():
            return {"tensor": given.name}
        case Number():
            return {"number": (given.value, given.dtype)}
        case tuple() if all(isinstance(one, int) for one in given):
            return {"integers": given}
        case tuple():
            return {"tensors": [o.name for o in given if not isinstance(o, int)]}
        case _:
            return {"setting": given}


def _run(folder: Path, target: str) -> None:
    """Run coremltools in a subprocess to build the package of the job in `folder`."""
    command = [sys.executable, "-I", worker.__file__, str(folder)]
    ours, held = os.pipe()  # the worker ends when this end of the pipe closes
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            cwd=folder,
            stdin=ours,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"coremltools took more than {SECONDS} seconds"
        raise ExportFailed(target=target, what="the package", reason=reason) from error
    finally:
        os.close(ours)
        os.close(held)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = (
            f"coremltools ended with {done.returncode}; it says",
            *lines[-_LAST_LINES:],
        )
        raise ExportFailed(target=target, what="the package", reason="\n  ".join(said))


def _archive(package: Path) -> bytes:
    """Return the files of a package as a zip archive, sorted and without timestamps."""
    files = {
        path.relative_to(package).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file()
    }
    # Each identifier in the manifest is derived from its file's path.
    text = files[_MANIFEST].decode()
    for found, entry in json.loads(text)["itemInfoEntries"].items():
        text = text.replace(found, str(uuid.uuid5(_SPACE, entry["path"])))
    files[_MANIFEST] = json.dumps(json.loads(text), indent=4, sort_keys=True).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()
