"""Tokenizers for tests: what kvc.runtime.generation asks of one, and no more."""

import codecs


class ByteStream:
    """Bytes to text; a character that never becomes whole is U+FFFD."""

    def __init__(self, pieces):
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        return self._decoder.decode(self._pieces[token])

    def finish(self):
        return self._decoder.decode(b"", final=True)


class PieceTokenizer:
    """Each token stands for some bytes, which may be part of a character."""

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
