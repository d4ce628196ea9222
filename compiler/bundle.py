"""`Bundle`: a compiled program and the weights it needs, ready to be written."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvc.compiler.constants import Source, base_tensor, bytes_of, read
from kvc.schema import model
from kvc.schema.container import BundleWriter, default_align
from kvc.schema.digests import blob_digest
from kvc.schema.errors import CompileError, FormatError
from kvc.schema.verify import verify_program

Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a saved bundle holds.

    Attributes:
        file_nbytes: size of the file.
        blob_nbytes: bytes of weights in it, each once.
        named_nbytes: bytes that its names would take without sharing.
        blobs, names: how many.
    """

    file_nbytes: int
    blob_nbytes: int
    named_nbytes: int
    blobs: int
    names: int


class Bundle:
    """The result of `compile_program`.

    Weights are read, transformed, hashed and written one at a time by `save`, so the
    model that was compiled must stay unchanged until then.

    Attributes:
        program: all that the file will say, but for where its blobs lie.
        model_nbytes: bytes of the tensors that it is made of, each once.
    """

    def __init__(self, program: model.Program, sources: Mapping[str, Source]) -> None:
        self.program = program
        self._sources = sources
        tensors = {
            base_tensor(s).identity: base_tensor(s).tensor for s in sources.values()
        }
        self.model_nbytes = sum(t.numel() * t.itemsize for t in tensors.values())

    def save(
        self, path: str | os.PathLike[str], progress: Progress | None = None
    ) -> SaveReport:
        """Write the bundle, whole or not at all.

        Args:
            path: the file; one that exists is replaced at the very end.
            progress: called with (stage, done, total) as weights are written.

        Raises:
            OutputProblem: the file cannot be written; what was there is untouched.
        """
        with BundleWriter(path) as writer:
            store = _BlobStore(writer)
            names = []
            for done, entry in enumerate(self.program.names):
                if progress:
                    progress("write weights", done, len(self.program.names))
                blob = store.add(bytes_of(read(self._sources[entry.name])))
                names.append(replace(entry, blob=blob))
            program = replace(
                self.program, blobs=tuple(store.blobs), names=tuple(names)
            )
            _verify(program, os.fspath(path))
            writer.finish(program)
        return SaveReport(
            file_nbytes=Path(path).stat().st_size,
            blob_nbytes=sum(blob.nbytes for blob in program.blobs),
            named_nbytes=sum(program.blobs[n.blob].nbytes for n in program.names),
            blobs=len(program.blobs),
            names=len(program.names),
        )


def _verify(program: model.Program, path: str) -> None:
    """Check what the compiler has made as thoroughly as a stranger's file.

    Raises:
        CompileError: it does not pass: a bug in kvc.
    """
    try:
        verify_program(program, path, thorough=True)
    except FormatError as error:
        reason = f"{error}; this is a bug in kvc, please report it"
        raise CompileError(
            message=f"the compiled program is wrong: {reason}"
        ) from error


class _BlobStore:
    """Writes each content once, whatever its names."""

    def __init__(self, writer: BundleWriter) -> None:
        self._writer = writer
        self._known: dict[tuple[bytes, int], int] = {}
        self.blobs: list[model.Blob] = []

    def add(self, content: memoryview) -> int:
        """Return the id of the blob with this content."""
        key = (blob_digest(content), content.nbytes)
        if key not in self._known:
            align = default_align(content.nbytes)
            offset = self._writer.append(content, align)
            self._known[key] = len(self.blobs)
            self.blobs.append(model.Blob(key[0], content.nbytes, 0, offset, align))
        return self._known[key]
