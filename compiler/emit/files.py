"""Files that a bundle carries, such as a tokenizer: bytes that no method reads.

In: names, each with bytes or the path of a file. Out: contents with known sizes; files
are read when the bundle is saved, one block at a time. Settings for generation are
checked by the runtime's rules, and a tokenizer.json must not have tokens that the model
lacks.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvc.schema.container import Content
from kvc.schema.errors import (
    BadFile,
    BadSetting,
    CompileError,
    TokenizerTooLarge,
    reason_of,
)
from kvc.schema.generation_config import read_settings
from kvc.schema.interrupts import is_failure
from kvc.schema.model import Program
from kvc.schema.uses import is_plain_name

Files = Mapping[str, bytes | Path]

_BLOCK_NBYTES: Final = 1 << 20


def take_files(files: Files) -> dict[str, Content]:
    """Return name -> content to store under the name, in the order of names.

    Raises:
        BadFile: a name is not a plain one, or the content is neither bytes nor the path
            of a file that can be read.
    """
    return {name: _content(name, files[name]) for name in sorted(files, key=_plain)}


def _plain(name: object) -> str:
    if isinstance(name, str) and is_plain_name(name):
        return name
    reason = (
        "its name must be a plain one: letters, digits, '.', '_' and '-', not a dot "
        "first, 128 at the most"
    )
    raise BadFile(file=str(name), reason=reason)


def _content(name: str, given: object) -> Content:
    if isinstance(given, bytes):
        held = given
        return Content(len(held), lambda: iter([memoryview(held)]), held)
    if isinstance(given, Path):
        source = _DiskFile.find(name, given)
        return Content(source.identity[0], source.chunks, source)
    kind = type(given).__name__
    raise BadFile(
        file=name,
        reason=f"expected its bytes, or a pathlib.Path to read them from, found {kind}",
    )


@dataclass(frozen=True, slots=True)
class _DiskFile:
    """A file on disk, as it was when it was given.

    Attributes:
        identity: size, time of change, device and inode of the file.
    """

    name: str
    path: Path
    identity: tuple[int, int, int, int]

    @classmethod
    def find(cls, name: str, path: Path) -> "_DiskFile":
        """Record the identity of a file.

        Raises:
            BadFile: the file does not exist, or is no regular file.
        """
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            raise _unreadable(name, path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(file=name, reason=f"{path} is not a plain file")
        return cls(name, path, _identity(status))

    def chunks(self) -> Iterator[memoryview]:
        """Yield the file's bytes in blocks.

        Raises:
            BadFile: the file cannot be read, or has changed.
        """
        try:
            with self.path.open("rb") as file:
                rest = self.identity[0]
                same = _identity(os.fstat(file.fileno())) == self.identity
                while same and rest and (block := file.read(min(rest, _BLOCK_NBYTES))):
                    rest -= len(block)
                    yield memoryview(block)
                same = same and _identity(os.fstat(file.fileno())) == self.identity
        except OSError as error:
            raise _unreadable(self.name, self.path, error) from error
        if rest or not same:
            raise BadFile(
                file=self.name,
                reason=f"{self.path} changed since it was given; compile again",
            )


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


def _unreadable(name: str, path: Path, error: Exception) -> BadFile:
    return BadFile(file=name, reason=f"cannot read {path}: {reason_of(error)}")


_NAME = "generation_config"


def check_generation_config(found: object) -> None:
    """Check the generation settings for a bundle; None means no settings.

    Raises:
        CompileError: the settings are no mapping, or a setting has an impossible value.
    """
    if found is None:
        return
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        message = f"metadata {_NAME}: expected a mapping, found a value of type {kind}"
        raise CompileError(message=message)
    try:
        read_settings(found)
    except BadSetting as error:
        raise CompileError(message=f"{_NAME}, {error}") from error


TOKENIZER: Final = "tokenizer.json"
_ENDLESS: Final = 1 << 63
_TRIAL: Final = "A text, 1 € = 100 ¢."


def check_tokenizer(tokenizer: bytes | Path, vocabulary: int) -> None:
    """Check that a tokenizer encodes, and that the model has all its tokens.

    An added special token beyond the model's vocabulary, as some published tokenizers
    have for padding or images, is allowed if all other tokens are within the
    vocabulary. The tokenizer returns such a token only if a text contains it literally,
    and a call with the token is refused.

    Args:
        tokenizer: the content of a tokenizer.json, or its path.
        vocabulary: number of tokens of the model.

    Raises:
        BadFile: the file is no tokenizer.json, cannot be read, or cannot encode a text.
        TokenizerTooLarge: the tokenizer has tokens that the model lacks.
    """
    parsed = _parsed(tokenizer)
    beyond = {number: text for number, text in _tokens(parsed) if number >= vocabulary}
    if beyond:
        highest = max(beyond)
        raise TokenizerTooLarge(
            file=TOKENIZER,
            highest=highest,
            token=beyond[highest],
            vocabulary=vocabulary,
        )
    # Encode a text, if the package tokenizers is installed.
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return
    try:
        Tokenizer.from_str(json.dumps(parsed)).encode(_TRIAL)
    except BaseException as error:
        if not is_failure(error):
            raise
        raise BadFile(
            file=TOKENIZER, reason=f"it cannot encode {_TRIAL!r}: {error}"
        ) from error


def check_declared(
    program: Program, metadata: Mapping[str, object], files: Files
) -> None:
    """Check the tokenizer.json that `metadata` names, if it names one.

    Raises:
        BadFile: the tokenizer is not among the files; or as for `check_tokenizer`.
        TokenizerTooLarge: as for `check_tokenizer`.
    """
    if metadata.get("tokenizer") != TOKENIZER:
        return
    if TOKENIZER not in files:
        raise BadFile(
            file=TOKENIZER,
            reason="the metadata name it as the tokenizer, but files= lacks it",
        )
    known = _vocabulary(program)
    check_tokenizer(files[TOKENIZER], _ENDLESS if known is None else known)


def _vocabulary(program: Program) -> int | None:
    """Return the size of a model's vocabulary, as the logits of a method show it.

    The result is None if no method returns logits.
    """
    for method in program.methods:
        if method.role and method.graph.outputs:
            dims = method.graph.values[method.graph.outputs[0]].type.dims
            if dims and isinstance(dims[-1], int):
                return dims[-1]
    return None


def _parsed(tokenizer: bytes | Path) -> Mapping[str, object]:
    try:
        raw = tokenizer.read_bytes() if isinstance(tokenizer, Path) else tokenizer
        found: object = json.loads(raw)
    except OSError as error:
        raise BadFile(
            file=TOKENIZER, reason=f"cannot read {tokenizer!s}: {reason_of(error)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadFile(file=TOKENIZER, reason=f"it is not JSON: {error}") from error
    if not isinstance(found, Mapping) or not isinstance(found.get("model"), Mapping):
        raise BadFile(file=TOKENIZER, reason="it describes no tokenizer: no model")
    return found


def _tokens(tokenizer: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield (id, text) of a tokenizer's tokens, without added special tokens.

    An added token that is not special can have an id within the vocabulary.
    """
    model = tokenizer["model"]
    assert isinstance(model, Mapping), "parsed"
    match model.get("vocab"):
        case Mapping() as vocabulary:  # text -> id
            yield from ((_id(number), str(text)) for text, number in vocabulary.items())
        case list() as pieces:  # [text, score], ids are indices
            yield from ((i, _piece(piece)) for i, piece in enumerate(pieces))
        case _:
            raise BadFile(file=TOKENIZER, reason="its model has no vocabulary")
    added = tokenizer.get("added_tokens") or []
    for token in added if isinstance(added, list) else [added]:
        if not isinstance(token, Mapping):
            raise BadFile(file=TOKENIZER, reason=f"{token!r} is not an added token")
        if not token.get("special"):
            yield _id(token.get("id")), str(token.get("content"))


def _piece(piece: object) -> str:
    return str(piece[0]) if isinstance(piece, list) and piece else str(piece)


def _id(number: object) -> int:
    if type(number) is int and number >= 0:
        return number
    raise BadFile(file=TOKENIZER, reason=f"{number!r} is not a token id")
