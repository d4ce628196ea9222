"""Run Vela, Arm's compiler for Ethos-U, in a subprocess.

In: a TOSA file, the name of an NPU. Out: the compiled file, and Vela's report of memory
and cycles. Vela has native code: a crash or an endless loop ends only the subprocess.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.schema.errors import ExportFailed
from kvc.schema.frozen import frozen

VERSION: Final = "5.2.0"
PACKAGE: Final = "ethos-u-vela"
VELA: Final = LibraryPackage(f"{PACKAGE} {VERSION}", "ethosu", {PACKAGE: VERSION})
COMMAND: Final = ("-m", "ethosu.vela")
SECONDS: Final = 600
_NAME: Final = "partition"
_LAST_LINES: Final = 12


@frozen
class Compiled:
    """Vela's output for a graph.

    Attributes:
        content: a TFLite file with one custom operator, the command stream.
        sram_nbytes, other_nbytes: the bytes that a run uses in SRAM, and in DRAM or
            flash; constants and the command stream are included.
        cycles: Vela's estimate of the cycles of a run.
        macs: the number of multiplications of a run.
    """

    content: bytes
    sram_nbytes: int
    other_nbytes: int
    cycles: int
    macs: int


def compile_graph(raw: bytes, npu: str, target: str, what: str) -> Compiled:
    """Compile a TOSA file.

    Args:
        raw: the content of the file.
        npu: Vela's name of the NPU, such as ethos-u85-256.
        target: name of the target, for messages.
        what: description of the graph, for messages.

    Raises:
        ExportFailed: Vela rejects the graph, leaves operators to a processor, crashes,
            or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="kvc-vela-") as folder:
        given = Path(folder) / f"{_NAME}.tosa"
        given.write_bytes(raw)
        told = _run(given, npu, target, what)
        left = [line for line in told if line.startswith("CPU operators")]
        if not left or left[0].split("=")[1].split()[0] != "0":
            raise _failed(target, what, "operators are left to a processor", told)
        try:
            return _made(Path(folder))
        except (OSError, ValueError, KeyError) as error:
            ended = f"Vela's output cannot be read ({type(error).__name__}: {error})"
            raise _failed(target, what, ended, told) from error


def _made(folder: Path) -> Compiled:
    """Read Vela's output files in a folder.

    Raises:
        OSError, ValueError, KeyError: a file or entry is missing or malformed.
    """
    (summary,) = folder.glob("*.csv")
    with summary.open(newline="") as file:
        (row,) = csv.DictReader(file)
    kilobytes = {name: float(row[f"{name}_memory_used"]) for name in _MEMORIES}
    return Compiled(
        content=(folder / f"{_NAME}_vela.tflite").read_bytes(),
        sram_nbytes=round(1024 * kilobytes.pop("sram")),
        other_nbytes=round(1024 * sum(kilobytes.values())),
        cycles=int(float(row["cycles_total"])),
        macs=int(float(row["nn_macs"])),
    )


_MEMORIES: Final = ("sram", "dram", "on_chip_flash", "off_chip_flash")


def _run(given: Path, npu: str, target: str, what: str) -> list[str]:
    """Run Vela on a file, in the file's folder; return the lines that Vela prints."""
    command = [
        *(sys.executable, "-I", *COMMAND, str(given)),
        *("--accelerator-config", npu, "--output-dir", str(given.parent)),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            cwd=given.parent,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"Vela took more than {SECONDS} seconds"
        raise ExportFailed(target=target, what=what, reason=reason) from error
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    if done.returncode:
        raise _failed(target, what, f"Vela ended with {done.returncode}", lines)
    return lines


def _failed(target: str, what: str, reason: str, lines: list[str]) -> ExportFailed:
    said = [line for line in lines if line.strip() and "Warning: No" not in line]
    text = "\n  ".join((f"{reason}; it says", *said[-_LAST_LINES:]))
    return ExportFailed(target=target, what=what, reason=text)
