"""The exported file of a target: command streams of all partitions, and a report.

In: TOSA graphs, one for each partition and set of sizes. Out: a zip archive. Its first
file is `report.json`, which lists each graph's inputs and outputs in order, with their
grids, and the memory and cycles that Vela reports. A TFLite file for each graph
follows. Equal graphs give equal bytes.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.ethosu.tosa import TosaGraph
from kvc.runtime.delegates.ethosu.tosa_file import tosa_bytes
from kvc.runtime.delegates.ethosu.vela import VELA, VERSION, compile_graph
from kvc.schema.backends.grids import Grid
from kvc.schema.errors import ExportFailed
from kvc.schema.frozen import frozen

_MACS: Final = {"u55": (32, 64, 128, 256), "u85": (128, 256, 512, 1024, 2048)}
TARGETS: Final = {
    f"{npu}-{macs}": f"ethos-{npu}-{macs}"
    for npu, sizes in _MACS.items()
    for macs in sizes
}
_OF_U85: Final = frozenset({"MATMUL", "SCATTER", "REDUCE_MAX"})
_REPORT: Final = "report.json"
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip archive


@frozen
class Unit:
    """A partition at a set of sizes.

    Attributes:
        name: name of the partition's file, without a suffix.
        method: name of the partition's method.
        graph: the partition's TOSA graph.
        inputs, outputs: a grid and a description of each input or output; the grid is
            None for tensors that are integers in the model.
    """

    name: str
    method: str
    graph: TosaGraph
    inputs: Sequence[tuple[Grid | None, str]]
    outputs: Sequence[tuple[Grid | None, str]]


def image_of(target: str, units: Sequence[Unit]) -> bytes:
    """Return the exported file of a target.

    Raises:
        MissingLibrary: Vela is missing.
        ExportFailed: Vela cannot compile a graph, or the NPU cannot run it.
    """
    VELA.check()
    report, files = [], dict[str, bytes]()
    for unit in units:
        what = f"{unit.name} of method {unit.method!r}"
        _check_operators(unit.graph, target, what)
        made = compile_graph(tosa_bytes(unit.graph), TARGETS[target], target, what)
        files[f"{unit.name}.tflite"] = made.content
        report.append(
            {
                "file": f"{unit.name}.tflite",
                "method": unit.method,
                "inputs": _told(unit.graph, unit.graph.inputs, unit.inputs),
                "outputs": _told(unit.graph, unit.graph.outputs, unit.outputs),
                "sram_nbytes": made.sram_nbytes,
                "other_nbytes": made.other_nbytes,
                "cycles": made.cycles,
                "macs": made.macs,
            }
        )
    made_for = f"{target}-vela{VERSION}"
    text = json.dumps({"target": made_for, "partitions": report}, indent=1)
    return _archive({_REPORT: text.encode(), **files})


def _check_operators(graph: TosaGraph, target: str, what: str) -> None:
    """Check that an NPU supports a graph's operators, with a clearer error than Vela's.

    Raises:
        ExportFailed: an operator is not supported.
    """
    found = {operator.kind for operator in graph.operators} & _OF_U85
    if target.startswith("u55") and found:
        reason = (
            f"Ethos-U55 does not run {', '.join(sorted(found))}, which norms, caches "
            'and attention become; compile with npu = "u55" in [backend.options], and '
            "they are left to the processor"
        )
        raise ExportFailed(target=target, what=what, reason=reason)


def _told(
    graph: TosaGraph, names: Sequence[str], grids: Sequence[tuple[Grid | None, str]]
) -> list[Mapping[str, object]]:
    return [
        {
            "name": name,
            "is": what,
            "shape": graph.tensors[name].shape,
            "dtype": graph.tensors[name].element.value,
            "scale": 1.0 if grid is None else grid.scale,
            "zero": 0 if grid is None else grid.zero,
        }
        for name, (grid, what) in zip(names, grids, strict=True)
    ]


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return files as a zip archive without timestamps."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()
