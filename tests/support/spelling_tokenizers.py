"""Tokenizers for tests that have only the methods that kvc.runtime.generation needs."""

import codecs


class ByteStream:
    """Turns the bytes of tokens into text; an incomplete character becomes U+FFFD."""

    def __init__(self, pieces):
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        return self._decoder.decode(self._pieces[token])

    def finish(self):
        return self._decoder.decode(b"", final=True)


class PieceTokenizer:
    """A tokenizer whose tokens stand for bytes, maybe parts of a character."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.streams = 0

    def encode(self, text, special=True):
        found = [self.pieces.index(char.encode()) for char in text]
        return [0, *found] if special else found

    def stream(self, after=()):
        self.streams += 1
        stream = ByteStream(self.pieces)
        for token in after:
            stream.push(token)
        return stream
