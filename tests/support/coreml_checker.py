"""Check programs of other tests with Core ML's own tool: coremltools builds them.

Core ML does not run on Linux, so that the host computes the methods of the recipe
`coreml_fp16`. In the context `checking`, coremltools also builds each method, at its
least and its greatest sizes, and so checks every shape and dtype. One process builds
for all tests, since the import of coremltools takes seconds.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import coreml_builder
import pytest

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.coreml import backend, worker
from kvc.runtime.delegates.coreml.functions import _sizes_of, function_name
from kvc.runtime.delegates.coreml.mil import Function
from kvc.runtime.delegates.coreml.package import write_job
from kvc.runtime.delegates.coreml.translation import translate
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Handle
from kvc.schema.model import Delegate as Partition

COUNTS: Counter[str] = Counter()  # methods at some sizes, by what became of them
_built: set[str] = set()


class _Process:
    """The process `coreml_builder.py`, which builds the packages of jobs."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", coreml_builder.__file__, worker.__file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def build(self, folder: Path) -> str:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(str(folder)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"coremltools' process ended with {process.wait()}"
        return str(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Checked(backend.CoreMl):
    """Delegate that checks each method once all partitions of it are loaded."""

    process: _Process

    def __init__(self, options: backend.Options) -> None:
        super().__init__(options)
        self._known: dict[Partition, backend.CoreMlHandle] = {}

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Return the handle of a partition, as `CoreMl.init` does."""
        handle = super().init(partition, data)
        assert isinstance(handle, backend.CoreMlHandle)
        self._known[partition] = handle
        own = [d for d in self._program.delegates if d.method == partition.method]
        if all(each in self._known for each in own):
            self._check(partition.method)
        return handle

    def _check(self, number: int) -> None:
        method = self._program.methods[number]
        sizes = _sizes_of(self._program, method)
        for each in (sizes[0], sizes[-1]) if len(sizes) > 1 else sizes:
            try:
                function = self._function(number, method, each)
            except NotTaken:
                COUNTS["not whole"] += 1
            else:
                COUNTS["built"] += self._build(function)

    def _function(self, number, method, sizes) -> Function:
        """Translate a method at some sizes.

        A state that the method sets to numbers that are not float16 becomes an input.
        """
        program, kept = self._program, frozenset(range(len(self._program.states)))
        kept -= {i for i in kept if program.states[i].initial is not None}
        kept -= {i for i in kept if not program.states[i].type.dtype.is_floating}
        name = function_name(method, sizes, program)
        while True:
            function, exact = translate(program, number, sizes, name, kept)
            if not exact:
                return function
            kept -= exact

    def _build(self, function: Function) -> bool:
        held = {n: h for h in self._known.values() for n in h.names}
        stored = partial(backend._stored, held, backend.TARGET)
        with tempfile.TemporaryDirectory(prefix="kvc-coreml-") as folder:
            write_job(Path(folder), [function], stored, backend.TARGET)
            key = sha256((Path(folder) / "job.json").read_bytes()).hexdigest()
            if key in _built:
                return False
            said = self.process.build(Path(folder))
        assert not said, f"{function.name}: coremltools says {said}"
        _built.add(key)
        return True


@contextmanager
def checking() -> Iterator[None]:
    """Make coremltools check all programs that are loaded within this context."""
    Checked.process = _Process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DELEGATES, "coreml", Checked)
        yield
    Checked.process.close()
