"""`check_tokenizer`: check that a model has all tokens of its tokenizer.

In: a tokenizer.json, and how many tokens the model has. It is read as JSON, so
compiling needs no tokenizer package.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kvc.compiler.files import Files
from kvc.schema.errors import BadFile, TokenizerTooLarge, reason_of
from kvc.schema.model import Program

TOKENIZER: Final = "tokenizer.json"
_ENDLESS: Final = 1 << 63


def check_tokenizer(tokenizer: bytes | Path, vocabulary: int) -> None:
    """Check that no token of a tokenizer is beyond what a model knows.

    A special token that was added beyond it, as some published tokenizers have one for
    padding or for images, is let through while the vocabulary itself fits: text has it
    only where it is spelled out, and a call with it is refused.

    Args:
        tokenizer: the content of a tokenizer.json, or its path.
        vocabulary: how many tokens the model knows.

    Raises:
        BadFile: it is no tokenizer.json, or cannot be read.
        TokenizerTooLarge: the tokenizer has other tokens than the model.
    """
    beyond = {
        number: text
        for number, text in _tokens(_parsed(tokenizer))
        if number >= vocabulary
    }
    if beyond:
        highest = max(beyond)
        raise TokenizerTooLarge(
            file=TOKENIZER,
            highest=highest,
            token=beyond[highest],
            vocabulary=vocabulary,
        )


def check_declared(
    program: Program, metadata: Mapping[str, object], files: Files
) -> None:
    """Check the tokenizer.json that metadata name, if they do.

    Raises:
        BadFile: it is not among the files, or as `check_tokenizer`.
        TokenizerTooLarge: as `check_tokenizer`.
    """
    if metadata.get("tokenizer") != TOKENIZER:
        return
    if TOKENIZER not in files:
        reason = "the metadata name it as the tokenizer, but files= lacks it"
        raise BadFile(file=TOKENIZER, reason=reason)
    known = _vocabulary(program)
    check_tokenizer(files[TOKENIZER], _ENDLESS if known is None else known)


def _vocabulary(program: Program) -> int | None:
    """Return how many tokens a model knows: the logits of one that generates."""
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
        reason = f"cannot read {tokenizer!s}: {reason_of(error)}"
        raise BadFile(file=TOKENIZER, reason=reason) from error
    except (ValueError, RecursionError) as error:
        raise BadFile(file=TOKENIZER, reason=f"it is not JSON: {error}") from error
    if not isinstance(found, Mapping) or not isinstance(found.get("model"), Mapping):
        raise BadFile(file=TOKENIZER, reason="it describes no tokenizer: no model")
    return found


def _tokens(tokenizer: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield id and text of all tokens but the special ones that were added.

    An added token may have an id within the vocabulary: it is then no further token.
    """
    model = tokenizer["model"]
    assert isinstance(model, Mapping), "parsed"
    match model.get("vocab"):
        case Mapping() as vocabulary:  # text -> id
            yield from ((_id(number), str(text)) for text, number in vocabulary.items())
        case list() as pieces:  # [text, score], ids are places
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
