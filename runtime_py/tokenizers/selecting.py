"""`tokenizer_of`: make the tokenizer that a bundle's metadata names.

In: a program or session. Out: a tokenizer. The metadata has `"tokenizer": "bytes"`, or
`"tokenizer": "tokenizer.json"` for a file in the bundle. If the metadata names no
tokenizer, texts are token ids written as numbers.
"""

import json
from typing import Final

from kvc.runtime.tokenizers.interface import TextSource, Tokenizer
from kvc.runtime.tokenizers.plain import Bytes, Ids
from kvc.schema.errors import BadSetting

TOKENIZER: Final = "tokenizer.json"


def tokenizer_of(source: TextSource) -> Tokenizer:
    """Return the tokenizer that a program or a session names.

    Raises:
        BadSetting: kvc has no tokenizer of that name, or the bundle lacks the file.
        MissingPackage: the package tokenizers, which reads the file, is not installed.
        BadTokenizer: the file is invalid.
        FileChanged, FormatError, FileProblem: the file has changed, is damaged, or
            cannot be read.
        Closed, Forked: the program is closed, or was opened by another process.
    """
    kind = _kind(source.metadata.get("tokenizer", "null"))
    if kind is None:
        return Ids()
    if kind == "bytes":
        return Bytes()
    if kind != TOKENIZER or TOKENIZER not in source.files:
        carried = f', or "{TOKENIZER}" and this file in the bundle'
        raise _bad(f'"bytes"{carried}, or none', repr(kind))
    from kvc.runtime.tokenizers.library import JsonTokenizer

    return JsonTokenizer(source.files[TOKENIZER])


def _kind(text: str) -> object:
    try:
        kind: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad("JSON", text) from error
    return kind


def _bad(expected: str, found: str) -> BadSetting:
    name = "the bundle's metadata tokenizer"
    return BadSetting(name=name, expected=expected, found=found)
