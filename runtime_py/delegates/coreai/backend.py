"""The run-time part of the backend `coreai`: Apple's Core AI, or reference kernels.

In: a block that `kvc.schema.backends.coreai` supports. Out: functions of Core AI, one
for each set of sizes, which a subprocess runs, or an asset with all of them.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreai.context import CORE_AI, TARGET, Call, Context
from kvc.runtime.delegates.coreai.naming import name_functions, name_partition
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.function import Weight
from kvc.runtime.delegates.lowering.partition import lower_partition
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.lowering.runs import Bound, convert_into
from kvc.runtime.delegates.operands import where_of
from kvc.runtime.delegates.planned_delegate import PlannedDelegate, Sizes, Translate
from kvc.runtime.execution.delegate import Handle, Packing
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.coreai import PRIMITIVES, why_not
from kvc.schema.backends.operands import WhyNot
from kvc.schema.dtypes import DType
from kvc.schema.errors import listing
from kvc.schema.graph import Graph
from kvc.schema.model import Delegate as Partition
from kvc.schema.model import Program
from kvc.schema.ops import DELEGATE

# Pack a folder of files into bytes, for an export that is a folder.


_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest date in a ZIP archive


def pack_folder(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive of a folder's files, given by their paths in the folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()


# The backend `coreai`.


_DTYPES: Final = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.INT64: "int32",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}
# The traits of Core AI for each precision that a payload names.
TRAITS: Final = {
    payload: DeviceTraits(PRIMITIVES, _DTYPES, half)
    for payload, half in ((b"float32", False), (b"float16", True))
}


class CoreAI(PlannedDelegate[Plan, Weight, Context]):
    """Runs partitions by Core AI."""

    runs_on = "Core AI of Apple"
    needs = CORE_AI.needed
    exports_folder = True
    backend, package, all_targets, run = "coreai", CORE_AI, (TARGET,), Bound

    def translator(self, partition: Partition) -> tuple[WhyNot, Translate[Plan]]:
        """Return the support list, and a function that lowers partitions.

        Raises:
            BadProgram: the payload names no precision.
        """
        program, payload = self._program, partition.payload
        if payload not in TRAITS:
            what = f"a payload of {len(payload)} bytes that is no precision"
            raise self.wrong(where_of(program, partition), what)
        called = name_partition(program, program.delegates.index(partition))

        def translate(graph: Graph, sizes: Sizes, name: str) -> Plan:
            names = replace(called, function=name)
            return lower_partition(graph, sizes, names, TRAITS[payload])

        return why_not, translate

    def call(self, partition: Partition, plan: Plan) -> Call:
        """Return a call of a function in Core AI, bound to new memory."""
        assert self._context is not None
        return self._context.call(plan, self.weight, self._together)

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return an asset, as a packed folder; see `Delegate.export`."""
        made = super().export(target, handles)
        return replace(made, remark=_remark(self._program))

    def _together(self, most: int) -> Sequence[Plan] | None:
        """Return the plans of all partitions; None if there are more than `most`."""
        count = sum(len(each.sizes) for each in self._handles.values())
        return self.plans() if count <= most else None

    def _names(
        self, sizes: Mapping[int, Sequence[Sizes]]
    ) -> Mapping[int, Sequence[str]]:
        return name_functions(self._program, sizes)

    def _context_of(self, target: str) -> Context:
        return Context()

    def _stored(self, weight: Weight, array: Array) -> Array:
        made = np.empty(array.shape, weight.dtype)
        try:
            convert_into(made, array)
        except ValueError as error:
            where = f"the constant {self._program.names[weight.data].name!r}"
            what = f"the backend coreai does not take it: {error}"
            raise self.wrong(where, what) from error
        return made

    def _exported(self, target: str, context: Context) -> bytes:
        functions = [plan.function for plan in self.plans()]
        return pack_folder(context.store(functions, self.weight))


def _remark(program: Program) -> str:
    """Return a remark that lists the methods that an asset lacks in part, or ""."""
    mine = {each.method for each in program.delegates if each.backend == "coreai"}
    parts = [
        method.name
        for number, method in enumerate(program.methods)
        if number not in mine
        or [step.op for step in method.graph.instructions] != [DELEGATE]
    ]
    advice = "kvc dump --delegates lists what others run"
    return f"the asset has not all of: {listing(parts)}; {advice}" if parts else ""
