"""Convert text to tokens, tokens to text, and a conversation to text.

    text --encode--> token ids --TextStream.push--> pieces of text
    messages --ChatTemplate.render--> text

`tokenizer_of` and `chat_template_of` read the metadata and files of a bundle.
`plain.py` has the tokenizers that need no file; `library.py` reads tokenizer.json with
the package tokenizers, `text_streaming.py` turns its tokens into text piece by piece.
Chat templates run in a subprocess: `rendering.py` starts the subprocess, which runs
`template_process.py` and `sandbox.py`. `template_arguments.py` has the variables of
templates, `function_schemas.py` describes functions as tools.
"""

from kvc.runtime.tokenizers.chat_template import ChatTemplate, chat_template_of
from kvc.runtime.tokenizers.interface import TextSource, TextStream, Tokenizer
from kvc.runtime.tokenizers.plain import Bytes, Ids
from kvc.runtime.tokenizers.selecting import tokenizer_of
from kvc.runtime.tokenizers.template_arguments import Document, Message, Tool

__all__ = [
    "Bytes",
    "ChatTemplate",
    "Document",
    "Ids",
    "Message",
    "TextSource",
    "TextStream",
    "Tokenizer",
    "Tool",
    "chat_template_of",
    "tokenizer_of",
]
