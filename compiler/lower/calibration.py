"""Run a program on samples: for fixed-point backends, and for int4 weights.

In: a program whose partitions are cut and whose writes are proven, and a calibrator
that runs the program. Out: for a fixed-point backend, the range of the numbers in each
IR value of the partitions; for int4 weights, the second moments of the inputs of each
linear layer. The program is saved to a temporary bundle, which is as large as the
weights.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar, Protocol

from kvc.compiler.backends import Backend, Lowered, Partition
from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.emit.program import DelegateCall
from kvc.compiler.ir import Method, Value
from kvc.compiler.lower.lowering import Parts
from kvc.compiler.lower.variants import Emitted
from kvc.compiler.passes.quantize_weights import NARROW, may_be_int4
from kvc.compiler.weights.int4 import Moments
from kvc.compiler.weights.sources import Source
from kvc.recipes import Recipe
from kvc.schema import model
from kvc.schema.calibration import LINEAR_LAYERS, Observed, Ranges, SeenInputs
from kvc.schema.container import Content, Progress
from kvc.schema.errors import (
    CalibrationNeeded,
    CalibrationUnused,
    NeverSeen,
    NotCalibrated,
    listing,
)
from kvc.schema.graph import Graph
from kvc.schema.provenance import Calibration


class Calibrator(Protocol):
    """Runs a program on samples; `kvc.runtime.calibration.Samples` is one."""

    def observe(self, bundle: Path, progress: Progress) -> Observed:
        """Return the range of the numbers in each value of a bundle's partitions.

        Raises:
            KvcError: the samples are not for this model, or a call fails.
        """

    def sum_inputs(self, bundle: Path, progress: Progress) -> SeenInputs:
        """Return for each linear layer of a bundle the sum of x x' over its inputs x.

        Raises:
            KvcError: the samples are not for this model, or a call fails.
        """


def check_calibration(
    recipes: Sequence[Recipe],
    backends: Sequence[Sequence[Backend]],
    calibrator: Calibrator | None,
) -> None:
    """Check that samples are given exactly when a backend or int4 weights use them.

    Raises:
        CalibrationNeeded: a backend needs samples and none are given.
        CalibrationUnused: samples are given and nothing uses them.
    """
    every = [each for some in backends for each in some]
    needing = [each.name for each in every if each.calibrated]
    if needing and calibrator is None:
        raise CalibrationNeeded(backend=needing[0])
    narrow = any(one.linear in NARROW for one in recipes)
    if calibrator is not None and not needing and not narrow:
        names = listing(list(dict.fromkeys(each.name for each in every)))
        recipe = listing([one.name for one in recipes])
        raise CalibrationUnused(recipes=recipe, backends=names)


def plain_calls(parts: Parts) -> list[DelegateCall]:
    """Return calls of all partitions without payloads; reference kernels run them."""
    return [
        DelegateCall(backend.name, partition.graph, Lowered(), backend.over_operands)
        for backend, by_name in parts.items()
        for some in by_name.values()
        for partition in some
    ]


@dataclass(frozen=True, slots=True)
class Calibrating:
    """A calibrator and the settings for running a program on samples.

    Attributes:
        calibrator: runs a program on samples.
        files: the files that the bundle carries, such as a tokenizer.
        progress: called for each stage.
    """

    calibrator: Calibrator
    files: Mapping[str, Content]
    progress: Progress

    def ranges(
        self, program: model.Program, sources: Mapping[str, Source], parts: Parts
    ) -> tuple[Parts, Calibration]:
        """Return partitions with the ranges of their values, and the calibration used.

        Args:
            program: a program with the calls of `plain_calls`.
            sources: the sources of the program's constants, by name.
            parts: the program's partitions, by backend and by the method that calls
                them.

        Raises:
            NotCalibrated: the samples do not run a partition that needs ranges.
            NeverSeen: a value of a partition has no elements in any sample.
            KvcError: as for `Calibrator.observe`, or the bundle cannot be written.
        """
        with self._saved(program, sources) as path:
            observed = self.calibrator.observe(path, self.progress)
        for backend in parts:
            if backend.calibrated:
                _check_run(program, observed, backend.name)
        numbers = count()
        found = {
            backend: {
                name: [_ranged(backend, one, observed, next(numbers)) for one in some]
                for name, some in by_name.items()
            }
            for backend, by_name in parts.items()
        }
        return found, observed.calibration

    def moments(
        self, program: model.Program, sources: Mapping[str, Source]
    ) -> tuple[Mapping[str, Moments], Calibration]:
        """Return the second moments of linear layers' inputs, and the calibration used.

        Args:
            program: a program whose linear layers are partitions of `LinearLayers`.
            sources: the sources of the program's constants, by name.

        Raises:
            KvcError: as for `Calibrator.sum_inputs`, or the bundle cannot be written.
        """
        with self._saved(program, sources) as path:
            seen = self.calibrator.sum_inputs(path, self.progress)
        shared = {id(sums): Moments(sums) for sums in seen.sums.values()}
        moments = {name: shared[id(sums)] for name, sums in seen.sums.items()}
        return moments, seen.calibration

    @contextmanager
    def _saved(
        self, program: model.Program, sources: Mapping[str, Source]
    ) -> Iterator[Path]:
        self.progress("calibrate", 0, 0)
        with tempfile.TemporaryDirectory(prefix="kvc-calibrate-") as folder:
            path = Path(folder) / "bundle.kvc"
            Bundle(program, sources, self.files).save(path)
            yield path


class LinearLayers(Backend):
    """A backend that takes linear layers whose inputs are observed for int4 weights."""

    name: ClassVar[str] = LINEAR_LAYERS

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the linear layers; see `Backend.supports`."""
        constants = {value.id for value, _ in method.constants}
        return frozenset(
            index
            for index, node in enumerate(method.nodes)
            if may_be_int4(node)
            and isinstance(weight := node.arguments[1], Value)
            and weight.id in constants
        )


def _ranged(
    backend: Backend, partition: Partition, observed: Observed, delegate: int
) -> Partition:
    """Return a partition with its observed ranges, if its backend is calibrated."""
    if not backend.calibrated:
        return partition
    seen, scores = observed.ranges[delegate], observed.scores.get(delegate, {})
    ids = value_numbers(partition.graph).items()
    return replace(
        partition,
        ranges={v: seen[i] for v, i in ids if i in seen},
        scores={v: scores[i] for v, i in ids if i in scores},
    )


def _check_run(program: model.Program, observed: Observed, backend: str) -> None:
    """Check that every partition of a backend has run, with a range for every value.

    Raises:
        NotCalibrated: a partition has not run.
        NeverSeen: a value of a partition never had elements.
    """
    missing, unseen = dict[str, None](), dict[str, None]()
    for number, one in enumerate(program.delegates):
        method = program.methods[one.method]
        if one.backend != backend:
            continue
        if number not in observed.ranges:
            missing[method.name] = None
        elif _unseen(method.blocks[one.block].graph, observed.ranges[number]):
            unseen[method.name] = None
    if missing:
        raise NotCalibrated(methods=listing([*missing]), backend=backend)
    if unseen:
        raise NeverSeen(methods=listing([*unseen]), backend=backend)


def _unseen(graph: Graph, ranges: Ranges) -> bool:
    """Tell whether a floating-point value that can have elements has no range."""
    return any(
        number not in ranges
        for number, value in enumerate(graph.values)
        if value.type.dtype.is_floating and 0 not in value.type.dims
    )


def with_calibration(program: model.Program, made: Sequence[Emitted]) -> model.Program:
    """Record in a program's provenance the first calibration that any recipe used."""
    used = [one.program.provenance.calibration for one in made]
    calibration = next((one for one in used if one is not None), None)
    return replace(
        program, provenance=replace(program.provenance, calibration=calibration)
    )
