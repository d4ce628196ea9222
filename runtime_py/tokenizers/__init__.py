"""From text to tokens and back, and from a conversation to text.

    text --encode--> token ids --TextStream.push--> pieces of text
    messages --ChatTemplate.render--> text

`tokenizer_of` and `chat_template_of` read what a bundle says and carries. `plain.py`
has the tokenizers that need no file; `library.py` reads tokenizer.json with the package
tokenizers, `stages.py` turns its tokens into text piece by piece. Chat templates run in
a process of their own: `rendering.py` starts it, `template_process.py` and `sandbox.py`
are what runs there.
"""

from kvc.runtime.tokenizers.base import TextSource, TextStream, Tokenizer
from kvc.runtime.tokenizers.chat_template import (
    ChatTemplate,
    Message,
    chat_template_of,
)
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
