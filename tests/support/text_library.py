"""The tokenizer of libkvc, called by ctypes."""

import ctypes
import json
from collections.abc import Sequence
from functools import cache

import libkvc
from generation_library import Refused


@cache
def library() -> ctypes.CDLL:
    """Return the library of the kernels, which has libkvc in it."""
    loaded = libkvc.library()
    pointer, count = ctypes.c_void_p, ctypes.c_size_t
    loaded.kvc_tokenizer_open.argtypes = (pointer, count, pointer, pointer)
    loaded.kvc_tokenizer_encode.argtypes = (
        pointer,
        pointer,
        count,
        ctypes.c_int32,
        *[pointer] * 3,
    )
    loaded.kvc_spelling_push.argtypes = (pointer, ctypes.c_int64, pointer)
    loaded.kvc_turns_open.argtypes = (pointer, count, pointer, pointer)
    loaded.kvc_spelling_push.restype = loaded.kvc_spelling_finish.restype = pointer
    loaded.kvc_turns_stop_tokens.restype = ctypes.c_char_p
    return loaded


def _called(name: str, *arguments: object) -> None:
    error = libkvc.Error()
    code = getattr(library(), name)(*arguments, ctypes.byref(error))
    if code:
        raise Refused(code, error.text.decode())


class Tokenizer:
    """A `kvc_tokenizer`."""

    def __init__(self, raw: bytes) -> None:
        self._handle = ctypes.c_void_p()
        _called("kvc_tokenizer_open", raw, len(raw), ctypes.byref(self._handle))

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        tokens, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_int64()
        places = ctypes.byref(tokens), ctypes.byref(count)
        _called("kvc_tokenizer_encode", self._handle, raw, len(raw), special, *places)
        return tokens[: count.value]

    def __del__(self) -> None:
        library().kvc_tokenizer_close(self._handle)


class Spelling:
    """A `kvc_spelling`."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = ()) -> None:
        self._handle, self._tokenizer = ctypes.c_void_p(), tokenizer
        stops = json.dumps(list(stop_strings)).encode()
        handle = ctypes.byref(self._handle)
        _called("kvc_spelling_open", tokenizer._handle, stops, handle)

    def push(self, token: int) -> str:
        nbytes = ctypes.c_size_t()
        made = library().kvc_spelling_push(self._handle, token, ctypes.byref(nbytes))
        return ctypes.string_at(made, nbytes.value).decode()

    def finish(self) -> str:
        nbytes = ctypes.c_size_t()
        made = library().kvc_spelling_finish(self._handle, ctypes.byref(nbytes))
        return ctypes.string_at(made, nbytes.value).decode()

    @property
    def stopped(self) -> bool:
        return bool(library().kvc_spelling_stopped(self._handle))

    def __del__(self) -> None:
        library().kvc_spelling_close(self._handle)


class Turns:
    """A `kvc_turns`."""

    def __init__(self, turns: object) -> None:
        self._handle, raw = ctypes.c_void_p(), json.dumps(turns).encode()
        _called("kvc_turns_open", raw, len(raw), ctypes.byref(self._handle))

    def text(self, said: str, first: bool = False, system: str | None = None) -> str:
        made = ctypes.c_char_p()
        asked = None if system is None else system.encode()
        place = ctypes.byref(made)
        _called("kvc_turns_text", self._handle, first, asked, said.encode(), place)
        assert made.value is not None
        return made.value.decode()

    @property
    def stop_tokens(self) -> list[int]:
        found: list[int] = json.loads(library().kvc_turns_stop_tokens(self._handle))
        return found

    def __del__(self) -> None:
        library().kvc_turns_close(self._handle)
