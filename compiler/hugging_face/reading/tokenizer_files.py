"""Convert a tokenizer that is not tokenizer.json, as older folders have it.

In: a folder with tokenizer.model, vocab.json and merges.txt, tekken.json or the like.
Out: tokenizer.json, made by transformers, or a warning that says what is missing.
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from transformers import AutoTokenizer

from kvc.compiler.emit.files import TOKENIZER
from kvc.compiler.hugging_face.reading.model_lines import words_of

# Files of tokenizers, and the packages with which transformers reads them, if any.
OTHERS: Final = {
    "tokenizer.model": "sentencepiece or tiktoken",
    "spiece.model": "sentencepiece",
    "sentencepiece.bpe.model": "sentencepiece",
    "tekken.json": "mistral-common",
    "tiktoken.model": "tiktoken",
    "vocab.json": "",
    "vocab.txt": "",
}


class TokenizerLeftOut(UserWarning):
    """A bundle takes tokens, not texts: the folder's tokenizer cannot be converted."""


def converted(folder: Path) -> dict[str, bytes]:
    """Return tokenizer.json, made of a folder's other files; {} without any.

    Warns:
        TokenizerLeftOut: transformers cannot convert the tokenizer.
    """
    found = [name for name in OTHERS if (folder / name).exists()]
    if not found:
        return {}
    try:
        with TemporaryDirectory() as made:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            tokenizer.save_pretrained(made)
            return {TOKENIZER: (Path(made) / TOKENIZER).read_bytes()}
    except Exception as error:
        packages = [OTHERS[name] for name in found if OTHERS[name]]
        install = f"install {packages[0]}, or " if packages else ""
        warnings.warn(
            f"{folder} has {', '.join(found)} and no {TOKENIZER}, and transformers "
            f"cannot convert it: {words_of(error)}; the bundle takes tokens, not "
            f"texts; {install}save it once with AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...)",
            TokenizerLeftOut,
            stacklevel=2,
        )
        return {}
