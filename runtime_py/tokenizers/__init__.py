"""Convert text to tokens, tokens to text, and a conversation to text.

    text --encode--> token ids --TextStream.push--> pieces of text
    messages --ChatTemplate.render--> text

`tokenizer_of` and `chat_template_of` read the metadata and files of a bundle.
`plain.py` has the tokenizers that need no file; `library.py` reads tokenizer.json with
the package tokenizers, `text_streaming.py` turns its tokens into text piece by piece.
Chat templates run in a subprocess: `rendering.py` starts the subprocess, which runs
`template_process.py` and `sandbox.py`.
"""

from kvc.runtime.tokenizers.chat_template import (
    ChatTemplate,
    Message,
    chat_template_of,
)
from kvc.runtime.tokenizers.interface import TextSource, TextStream, Tokenizer
from kvc.runtime.tokenizers.plain import Bytes, Ids
from kvc.runtime.tokenizers.selecting import tokenizer_of

__all__ = [
    "Bytes",
    "ChatTemplate",
    "Ids",
    "Message",
    "TextSource",
    "TextStream",
    "Tokenizer",
    "chat_template_of",
    "tokenizer_of",
]
