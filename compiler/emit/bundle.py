"""`Bundle`: a compiled program and the weights it needs, ready to be written."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch

from kvc.compiler.emit.files import Files, take_files
from kvc.compiler.emit.program import PLACELESS
from kvc.compiler.request.feedback import reporting
from kvc.compiler.weights.sources import ROTATED, Derived, Source, base_of, nbytes_of
from kvc.compiler.weights.stored_forms import stored_forms
from kvc.compiler.weights.weight_reader import WeightReader
from kvc.schema import model
from kvc.schema.bounds import Bounds
from kvc.schema.container import (
    Accept,
    Content,
    Progress,
    SavedBundle,
    foretold_nbytes,
    path_text,
    save_bundle,
)
from kvc.schema.errors import BadFile, CompileError, FormatError, LimitExceeded
from kvc.schema.interrupts import keeping_interrupts
from kvc.schema.uses import FILE, FILES, SLOT, named_file

Placement = Literal["internal", "external"]
PLACEMENTS: tuple[Placement, ...] = ("internal", "external")


@dataclass(frozen=True, slots=True)
class SaveReport:
    """The sizes of a saved bundle and of its data file.

    Attributes:
        file_nbytes: size of the bundle in bytes.
        blob_nbytes: bytes of the weights that the bundle refers to, each counted once.
        named_nbytes: bytes that the weights would take if each name had its own copy.
        blobs, names: numbers of blobs and of names of weights.
        data_path: the data file of the bundle's weights; None if the bundle contains
            the weights itself, or if data files of other bundles contain all of them.
        data_nbytes: size of the file `data_path` in bytes; 0 if there is none.
        reused: path of another bundle's data file -> bytes of weights in that file to
            which this bundle refers. Files without such weights are left out.
    """

    file_nbytes: int
    blob_nbytes: int
    named_nbytes: int
    blobs: int
    names: int
    data_path: str | None
    data_nbytes: int
    reused: Mapping[str, int]


class Bundle:
    """A compiled program that is not written yet, the result of `compile_program`.

    Weights are read, transformed, hashed and written block by block by `save`, so the
    compiled model, and its checkpoint, must stay unchanged until then.

    Attributes:
        program: the content of the file, without the offsets of weights in files.
        model_nbytes: bytes of the model's tensors that the program uses, each counted
            once.
        stored_forms: what became of matrices that a checkpoint has quantized -> how
            many, in words.
    """

    def __init__(
        self,
        program: model.Program,
        sources: Mapping[str, Source],
        files: Mapping[str, Content],
    ) -> None:
        self._bare = program
        # The names of files stand after the program's own.
        added = tuple(
            named_file(name, content.nbytes, PLACELESS)
            for name, content in files.items()
        )
        known = {named.name for named in program.names}
        for one in added:
            if one.name in known:
                raise BadFile(
                    file=one.name.removeprefix(FILES),
                    reason=f"the model has a tensor called {one.name}",
                )
        self.program = replace(program, names=(*program.names, *added))
        self._sources = sources
        self._files = files
        self.stored_forms = stored_forms(sources.values())
        self.model_nbytes = sum(map(nbytes_of, set(map(base_of, sources.values()))))

    @property
    def nbytes(self) -> int:
        """Return the bytes that `save` will write into one file, or a few more.

        The result is too large if `save` finds that some weights are equal.
        """
        return foretold_nbytes(self.program, partial(self._content, WeightReader()))

    @keeping_interrupts
    def save(
        self,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        data: Placement = "internal",
        reuse: Sequence[str | os.PathLike[str]] = (),
        accept: Accept | None = None,
    ) -> SaveReport:
        """Write the bundle, whole or not at all.

        Args:
            path: the path of the bundle; an existing file is replaced at the very end.
            progress: called before each weight is written, with the number of bytes
                that have been written.
            data: where weights go: into the bundle, or into a data file beside it,
                NAME-<digest>.kvd, that bundles with the same weights share.
            reuse: data files of other bundles. The bundle refers to the weights in
                these files, and only other weights are written.
            accept: called with the written bundle before it is moved to `path`; if
                `accept` raises an error, nothing is left behind.

        Raises:
            CannotWrite: a file cannot be written; existing files are untouched.
            CheckpointChanged: a checkpoint changed after it was opened.
            NotFinite: a weight to be quantized has a NaN or an infinity.
            FileProblem, FormatError: a data file to reuse cannot be read.
            CompileError: `data` is neither "internal" nor "external".
        """
        if data not in PLACEMENTS:
            known = " or ".join(PLACEMENTS)
            raise CompileError(message=f"data is {data!r}, it can be {known}")
        with _own_mistakes(path_text(path)), _one_thread():
            saved = save_bundle(
                path,
                self.program,
                partial(self._content, WeightReader(self._quantized_names())),
                external=data == "external",
                reuse=tuple(reuse),
                progress=reporting(progress),
                accept=accept,
            )
        return _report(saved)

    def with_files(self, files: Files) -> "Bundle":
        """Return a bundle with additional files; this one stays unchanged.

        Raises:
            BadFile: a name is not plain or is already used, or a file cannot be read.
        """
        added = take_files(files)
        for name in added.keys() & self._files.keys():
            raise BadFile(file=name, reason="the bundle has a file of this name")
        return Bundle(self._bare, self._sources, {**self._files, **added})

    def with_bounds(self, bounds: Bounds | None) -> "Bundle":
        """Return a bundle with these bound lists; this one stays unchanged."""
        made = copy(self)
        made._bare = replace(self._bare, bounds=bounds)
        made.program = replace(self.program, bounds=bounds)
        return made

    def __repr__(self) -> str:
        methods = ", ".join(method.name for method in self.program.methods)
        return f"<Bundle, not saved: {methods}>"

    def _quantized_names(self) -> dict[Source, str]:
        """Return source -> the weight's name in the model, for transformed weights."""
        return {
            source.base: name.removesuffix(f".{source.transform.value}").removesuffix(
                ROTATED
            )
            for name, source in self._sources.items()
            if isinstance(source, Derived)
        }

    def _content(self, reader: WeightReader, name: int) -> Content:
        """Return the content that belongs to a name of the program.

        `name` is the index of the name in the program's table of names.
        """
        entry = self.program.names[name]
        if entry.format == FILE:
            return self._files[entry.name.removeprefix(FILES)]
        if entry.format == SLOT:
            return Content(0, partial(iter, ()), SLOT)
        source = self._sources[entry.name]
        return Content(entry.type.nbytes({}), partial(reader.chunks, source), source)


class _Threads:
    """The number of torch threads before any save began, to be restored."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.saving = 0
        self.before = 0


_threads: Final = _Threads()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread in this context.

    A block is transformed faster than it is hashed. Two threads would have to wait for
    each other after every step, and if other processes use the cores too, the waiting
    takes longer than the work (ten times, measured on two busy cores). The setting
    applies to this thread, and to threads that first use torch during the save. A save
    that begins during another save must not mistake this setting for the number of
    threads to restore.
    """
    with _threads.lock:
        if not _threads.saving:
            _threads.before = torch.get_num_threads()
        _threads.saving += 1
        before = _threads.before
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _threads.lock:
            _threads.saving -= 1
            torch.set_num_threads(before)


@contextmanager
def _own_mistakes(path: str) -> Iterator[None]:
    """Convert errors about the new bundle to `CompileError`.

    Errors about data files to reuse stay unchanged.

    Raises:
        CompileError: the program does not pass the checks, which is a bug in kvc, or a
            part of it is larger than kvc allows.
    """
    try:
        yield
    except FormatError as error:
        if error.path != path:
            raise
        if isinstance(error, LimitExceeded):
            reason = f"{error}; lower the bounds of its sizes: rows, tokens, positions"
            raise CompileError(message=f"the program is too large: {reason}") from error
        reason = f"{error}; this is a bug in kvc, please report it"
        raise CompileError(
            message=f"the compiled program is wrong: {reason}"
        ) from error


def _report(saved: SavedBundle) -> SaveReport:
    program = saved.program
    own = {"", os.path.basename(saved.data_path or "")}  # noqa: PTH119
    return SaveReport(
        file_nbytes=saved.nbytes,
        blob_nbytes=sum(blob.nbytes for blob in program.blobs),
        named_nbytes=sum(program.blobs[n.blob].nbytes for n in program.names),
        blobs=len(program.blobs),
        names=len(program.names),
        data_path=saved.data_path,
        data_nbytes=saved.data_nbytes,
        reused={
            file.name: sum(blob.nbytes for blob in program.blobs if blob.file == number)
            for number, file in enumerate(program.files)
            if file.name not in own
        },
    )
