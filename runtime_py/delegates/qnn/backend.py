"""The run-time part of the backend `qnn`: Qualcomm's HTP, or reference kernels.

In: a block that `kvc.schema.backends.qnn` supports. Out: graphs of the device, one for
each set of sizes, which a subprocess runs, or a file with all of them. Without the
library, a float16 block runs in float32 with the reference kernels. A block on integers
then runs with numpy, on the same integers as on the device.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import numpy as np

from kvc.runtime.delegates.host_runs import PlanCall
from kvc.runtime.delegates.operands import where_of
from kvc.runtime.delegates.planned_delegate import PlannedDelegate, Sizes, Translate
from kvc.runtime.delegates.qnn.calls import Bound, rounded
from kvc.runtime.delegates.qnn.context import Context, Graph
from kvc.runtime.delegates.qnn.context_file import (
    BadContexts,
    Stored,
    read_contexts,
    write_contexts,
)
from kvc.runtime.delegates.qnn.evaluate import HostContext
from kvc.runtime.delegates.qnn.fixed_emitting import kind_of
from kvc.runtime.delegates.qnn.library import ARCHITECTURES, QNN, USUAL
from kvc.runtime.delegates.qnn.model_file import encode_model
from kvc.runtime.delegates.qnn.plan import Plan
from kvc.runtime.delegates.qnn.plan import Stored as Weight
from kvc.runtime.delegates.qnn.translation import translate
from kvc.runtime.execution.delegate import FoundDevice, Options, SoftwareDevice
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends import qnn, qnn_fixed
from kvc.schema.backends.operands import WhyNot
from kvc.schema.errors import DataFileMissing
from kvc.schema.model import Delegate as Partition

_told: Final[list[str]] = []  # the target that a warning of the emulator has named


class Qnn(PlannedDelegate[Plan, Weight, Context]):
    """Runs partitions on the HTP."""

    runs_on = "the HTP of a Snapdragon"
    needs = QNN.needed
    backend, package, all_targets, run = "qnn", QNN, tuple(ARCHITECTURES), Bound

    def __init__(self, options: Options) -> None:
        """Check all partitions, and find the library; see `PlannedDelegate`."""
        self._prebuilt: dict[int, Mapping[str, Stored]] = {}
        super().__init__(options)

    @staticmethod
    def devices() -> Sequence[FoundDevice]:
        """Return an emulated device for each architecture; see `Delegate.devices`."""
        QNN.check()
        return [
            FoundDevice(f"qnn:{target}", f"{name}'s HTP, emulated", "", True)
            for target, name in ARCHITECTURES.items()
        ]

    def translator(self, partition: Partition) -> tuple[WhyNot, Translate[Plan]]:
        """Return what makes models in float16, or on the grids of the payload."""
        if not partition.payload:
            return qnn.why_not, translate
        program = self._program
        graph = program.methods[partition.method].blocks[partition.block].graph
        path, where = self._options.path, where_of(program, partition)
        grids = qnn_fixed.read_payload(partition.payload, graph, path, where)
        return qnn_fixed.why_not, partial(translate, grids=grids)

    def call(self, partition: Partition, plan: Plan) -> PlanCall[Plan]:
        """Return a call of a graph on the device, or of a model that numpy runs."""
        if self._context is None:
            return HostContext().call(plan, self.weight, None)
        return self._context.call(plan, self.weight, self._graph(partition, plan))

    def _graph(self, partition: Partition, plan: Plan) -> Graph | None:
        """Return a plan's graph for the requested device; None if none is prebuilt.

        Raises:
            BadProgram: the data of the prebuilt graphs is damaged, or the graph was
                built from a model that is not the plan's.
        """
        device, names = self._options.device, self._program.names
        form = None if device is None else f"qnn:{self.all_targets[device]}"
        mine = [number for number in partition.names if names[number].format == form]
        if device is None or not mine:
            return None
        if mine[0] not in self._prebuilt:
            self._prebuilt[mine[0]] = self._read_contexts(names[mine[0]].name, device)
        found = self._prebuilt[mine[0]].get(plan.model.name)
        if found is None:
            return None
        if found.digest != self._digest(plan):
            what = f"the context {plan.model.name} was made of another model"
            raise self.wrong(where_of(self._program, partition), what)
        return found.graph, found.content

    def _read_contexts(self, name: str, device: int) -> Mapping[str, Stored]:
        try:
            with self._data[name] as buffer:
                raw = buffer.array().tobytes()
        except DataFileMissing:
            return {}
        try:
            return read_contexts(raw, self.all_targets[device])
        except BadContexts as error:
            what = f"these are no contexts to use: {error}"
            raise self.wrong(name, what) from error

    def _digest(self, plan: Plan) -> str:
        """Return the digest of a plan's model and weights."""
        found = sha256(encode_model(plan.model))
        for weight in plan.stored:
            blob = self._program.names[weight.data].blob
            found.update(self._program.blobs[blob].digest)
        return found.hexdigest()

    def _usual(self) -> str:
        if not _told:
            _told.append(USUAL)
            text = (
                f"{QNN.library} is an emulator here, which is slow; "
                f"name it with load(..., device='qnn:{USUAL}') or --device qnn:{USUAL},"
                " and this is not said"
            )
            warnings.warn(text, SoftwareDevice, stacklevel=2)
        return USUAL

    def _runs_here(self, partition: Partition) -> bool:
        return bool(partition.payload)

    def _names(
        self, sizes: Mapping[int, Sequence[Sizes]]
    ) -> Mapping[int, Sequence[str]]:
        return {
            number: [
                "_".join([f"p{number}", *(str(each[key]) for key in sorted(each))])
                for each in some
            ]
            for number, some in sizes.items()
        }

    def _context_of(self, target: str) -> Context:
        return Context(int(target.removeprefix("v")))

    def _stored(self, weight: Weight, array: Array) -> Array:
        """Round to the weight's grid or to float16, or leave the weight unchanged."""
        turned = array.T if weight.transposed else array
        if weight.is_exact:
            return turned
        if weight.grid is None:
            return rounded(turned)
        whole = weight.grid.integers(turned.astype(np.float32))
        return whole.astype(kind_of(weight.grid))

    def _exported(self, target: str, context: Context) -> bytes:
        """Return a file with the graphs, each in a separate context."""
        graphs = [
            Stored(
                plan.model.name, self._digest(plan), *context.store(plan, self.weight)
            )
            for plan in self.plans()
        ]
        return write_contexts(target, graphs)
