"""`Checkpoint`: the tensors of a model in .safetensors files, read when needed.

In: a folder, one file, or the index of several. Opening reads only headers; all files
are checked before any tensor is used. Pickles are refused: opening one can run code.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from torch import nn

from kvc.compiler.checkpoints.header import Pickled, parse_object
from kvc.compiler.checkpoints.loading import Loaded, load_model
from kvc.compiler.checkpoints.tensor_file import FileTensor, TensorFile
from kvc.schema.checkpoints.problems import Problems, bad_checkpoint
from kvc.schema.closing import Closing
from kvc.schema.container import path_text
from kvc.schema.errors import (
    CheckpointError,
    PickleCheckpoint,
    reason_of,
)

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class Checkpoint(Closing):
    """Weights in .safetensors files, of which only headers have been read.

    Tensors taken from a checkpoint keep its files open.

    Attributes:
        path: the path as the caller gave it.
        tensors: all tensors of the checkpoint by name.
    """

    tensors: Mapping[str, FileTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a checkpoint and read its headers.

        Args:
            path: a .safetensors file, the .index.json of a sharded checkpoint, or a
                folder that contains model.safetensors, model.safetensors.index.json, or
                a single .safetensors file of any name.

        Raises:
            PickleCheckpoint: the file is a pickle.
            BadCheckpoint: files are damaged or missing; the error lists all problems.
            CheckpointError: there is no checkpoint.
        """
        self.path = path_text(path)
        main = _main_file(self.path)
        if main.suffix in _PICKLES:
            raise PickleCheckpoint(path=self.path, files=main.name)
        index = _read_index(main, self.path) if main.suffix == ".json" else None
        names = [main.name] if index is None else sorted(set(index.values()))
        self._files = _open_files(main.parent, names, self.path)
        try:
            if index is None:
                index = dict.fromkeys(self._files[main.name].entries, main.name)
            self._check_index(index)
        except BaseException:
            self.close()
            raise
        self.tensors = MappingProxyType(
            {
                name: FileTensor(
                    self._files[file], name, self._files[file].entries[name]
                )
                for name, file in index.items()
            }
        )

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}: {len(self.tensors)} tensors>"

    def load_into(
        self,
        model: nn.Module,
        rename: Callable[[str], str] | Mapping[str, str] | None = None,
        strict: bool = True,
    ) -> Loaded:
        """Fill the tensors of a model with the values of this checkpoint.

        Parameters made in `empty_parameters` stay empty and become read-only; compiling
        reads their values from the checkpoint. Buffers, and parameters with memory, are
        filled at once. If a tensor does not fit, nothing is changed; if a file cannot
        be read, the tensors read before stay filled.

        Args:
            model: the module; tied tensors stay tied.
            rename: name in the checkpoint -> name in the model. Names that a mapping
                lacks stay the same.
            strict: whether to refuse tensors that only the model has, and tensors that
                only the checkpoint has.

        Raises:
            CheckpointMismatch: a tensor is missing, unexpected, of another shape, or of
                a dtype that cannot be converted to the model's; or two names of one
                tensor of the model have different values in the checkpoint. The error
                lists all such tensors.
            CheckpointChanged: a file changed after it was opened, or is closed.
            CheckpointError: `rename` is neither a mapping nor a function.
        """
        return load_model(model, self.path, self.tensors, rename, strict)

    def close(self) -> None:
        """Close the files; reading a tensor afterwards is an error."""
        for file in self._files.values():
            file.close()

    def _check_index(self, index: Mapping[str, str]) -> None:
        """Check that each tensor is in the file that the index names, and in no other.

        Raises:
            BadCheckpoint: a tensor is in a different file or in two files; the error
                lists all such tensors.
        """
        wrong = [
            f"{file}: tensor {name!r} is not in it, although the index says so"
            for name, file in index.items()
            if name not in self._files[file].entries
        ]
        owners: dict[str, list[str]] = {}
        for file, opened in self._files.items():
            for name in opened.entries:
                owners.setdefault(name, []).append(file)
        wrong += [
            f"tensor {name!r} is in {' and in '.join(files)}"
            for name, files in owners.items()
            if len(files) > 1
        ]
        if wrong:
            raise bad_checkpoint(wrong, self.path)


def _main_file(path: str) -> Path:
    """Return the .safetensors file, or the index, that a path stands for.

    Raises:
        PickleCheckpoint: the path is a folder that has only pickles.
        CheckpointError: there is no such file, or more than one.
    """
    folder = Path(path)
    try:
        if not folder.exists():
            raise CheckpointError(path=path, reason="there is no such file or folder")
        if not folder.is_dir():
            return folder
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(path=path, reason=reason_of(error)) from error
    tensors = [name for name in names if name.endswith(".safetensors")]
    found = [name for name in (SINGLE, INDEX) if name in names] or tensors
    if len(found) == 1 or found[:1] == [SINGLE]:
        return folder / found[0]
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles and not tensors:
        raise PickleCheckpoint(path=path, files=", ".join(pickles))
    reason = f"the folder has neither {SINGLE} nor {INDEX}"
    if tensors:
        reason += f", but {', '.join(tensors)}; give the path of a file"
    raise CheckpointError(path=path, reason=reason)


def _open_files(folder: Path, names: Iterable[str], path: str) -> dict[str, TensorFile]:
    """Open the files of a checkpoint.

    Raises:
        PickleCheckpoint: a file is a pickle.
        BadCheckpoint: a file is missing or damaged; the error lists all such files.
    """
    opened, wrong, pickles = dict[str, TensorFile](), list[str](), list[str]()
    for name in names:
        try:
            opened[name] = TensorFile(str(folder / name))
        except Pickled:
            pickles.append(name)
        except Problems as error:
            wrong += [f"{name}: {reason}" for reason in error.reasons]
    if pickles or wrong:
        for file in opened.values():
            file.close()
    if pickles:
        raise PickleCheckpoint(path=path, files=", ".join(pickles))
    if wrong:
        raise bad_checkpoint(wrong, path)
    return opened


def _read_index(main: Path, path: str) -> dict[str, str]:
    """Return name of a tensor -> name of its file, as an index says.

    Raises:
        BadCheckpoint: the index cannot be read, or names a file in another folder.
    """
    try:
        return _weight_map(main)
    except Problems as error:
        raise bad_checkpoint(
            [f"{main.name}: {reason}" for reason in error.reasons], path
        ) from error


def _weight_map(main: Path) -> dict[str, str]:
    """Return name of a tensor -> name of its file, as an index says.

    Raises:
        Problems: entries are wrong; the error lists all of them.
    """
    try:
        table = parse_object(main.read_bytes()).get("weight_map")
    except OSError as error:
        raise Problems(reason_of(error)) from error
    if not isinstance(table, dict) or not table:
        raise Problems("it has no weight_map")
    wrong = [
        f"tensor {name!r} is in {file!r}, which is not a plain file name"
        for name, file in table.items()
        if not _is_plain(file)
    ]
    if wrong:
        raise Problems(*wrong)
    return table


def _is_plain(name: object) -> bool:
    """Tell whether `name` is the plain name of a file, without a folder."""
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        return False
    return Path(name).name == name and name.isprintable() and "\\" not in name
