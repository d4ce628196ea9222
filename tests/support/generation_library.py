"""The part of libkvc that chooses tokens, called by ctypes.

In: settings as `kvc.generate` has them, logits, or a function from tokens to logits.
Out: tokens, and why an answer ended.
"""

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import libkvc
import numpy as np

ENDS = ("none", "stop", "max_tokens", "length", "caller")
CACHE_OVERFLOW = 16

Logits = np.ndarray
Given = Mapping[str, object]


class Refused(Exception):
    """The library has refused; it has the code and the text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Answer(ctypes.Structure):
    _fields_ = (
        ("end", ctypes.c_int32),
        ("tokens", ctypes.c_int64),
        ("prompt_tokens", ctypes.c_int64),
        ("prompt_seconds", ctypes.c_double),
        ("steps", ctypes.c_int64),
        ("step_seconds", ctypes.c_double),
        ("pending", ctypes.POINTER(ctypes.c_int64)),
        ("pending_count", ctypes.c_int64),
    )


_STEP = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(libkvc.Error),
)
_POSITION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_ON_TOKEN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)


class _Source(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("step", _STEP),
        ("position", _POSITION),
        ("capacity", ctypes.c_int64),
    )


@cache
def library() -> ctypes.CDLL:
    """Return the library of the kernels, which has libkvc in it."""
    loaded = libkvc.library()
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    loaded.kvc_sampler_begin.argtypes = (pointer, pointer, count, count, pointer)
    tokens = (pointer, count)
    loaded.kvc_generate.argtypes = (
        pointer,
        *tokens * 2,
        _ON_TOKEN,
        *[pointer] * 3,
    )
    loaded.kvc_generator_ignored.restype = ctypes.c_char_p
    loaded.kvc_generator_stop_strings.restype = ctypes.c_char_p
    return loaded


def _called(name: str, *arguments: object) -> None:
    error = libkvc.Error()
    code = getattr(library(), name)(*arguments, ctypes.byref(error))
    if code:
        raise Refused(code, error.text.decode())


def _text(settings: Given | None) -> bytes | None:
    return None if settings is None else json.dumps(settings).encode()


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


class Sampler:
    """A `kvc_sampler`."""

    def __init__(self, settings: Given, config: Given | None = None) -> None:
        self._handle = ctypes.c_void_p()
        handle = ctypes.byref(self._handle)
        _called("kvc_sampler_open", _text(config), _text(settings), handle)

    def begin(self, before: Sequence[int], vocabulary: int) -> None:
        tokens = np.array(before, np.int64)
        count = tokens.size
        _called("kvc_sampler_begin", self._handle, _address(tokens), count, vocabulary)

    def choose(self, logits: Logits) -> int:
        token = ctypes.c_int64()
        address = _address(logits)
        _called("kvc_sampler_choose", self._handle, address, ctypes.byref(token))
        return token.value

    def __del__(self) -> None:
        library().kvc_sampler_close(self._handle)


class Generator:
    """A `kvc_generator` of a model in Python.

    Attributes:
        tokens: of the newest answer, those that were handed out.
        answer: what the library tells of it.
    """

    def __init__(
        self,
        step: Callable[[list[int]], Logits],
        position: Callable[[], int],
        capacity: int,
        settings: Given,
        config: Given | None = None,
    ) -> None:
        """Open a generator.

        Args:
            step: runs tokens, and returns the logits after the last. It may raise
                `Refused`.
            position: returns how many tokens have run, -1 if that is not counted.
            capacity: how many tokens can run, -1 for any number.
            settings: of the caller.
            config: of the bundle.
        """
        self.tokens: list[int] = []
        self.answer = Answer()
        self._run = step
        self._source = _Source(
            None, _STEP(self._step), _POSITION(lambda _: position()), capacity
        )
        self._handle = ctypes.c_void_p()
        source, handle = ctypes.byref(self._source), ctypes.byref(self._handle)
        _called(
            "kvc_generator_open_source", source, _text(config), _text(settings), handle
        )

    def generate(
        self,
        prompt: Sequence[int],
        history: Sequence[int] = (),
        ends: Callable[[int], bool] = lambda _: False,
    ) -> str:
        """Make an answer, and return why it ended."""
        self.tokens = []
        before, given = np.array(history, np.int64), np.array(prompt, np.int64)

        def on_token(_: object, token: int) -> int:
            self.tokens.append(token)
            return ends(token)

        try:
            _called(
                "kvc_generate",
                self._handle,
                _address(before),
                before.size,
                _address(given),
                given.size,
                _ON_TOKEN(on_token),
                None,
                ctypes.byref(self.answer),
            )
        finally:
            self.pending = self.answer.pending[: self.answer.pending_count]
        return ENDS[self.answer.end]

    @property
    def ignored(self) -> str:
        found: bytes = library().kvc_generator_ignored(self._handle)
        return found.decode()

    @property
    def stop_strings(self) -> list[str]:
        made: list[str] = json.loads(library().kvc_generator_stop_strings(self._handle))
        return made

    def _step(self, _, tokens, count, logits, vocabulary, error) -> int:
        try:
            self._kept = np.ascontiguousarray(self._run(tokens[:count]), np.float32)
        except Exception as raised:  # it cannot pass through C
            error[0].text = repr(raised).encode()[:1000]
            return getattr(raised, "code", 26)
        logits[0], vocabulary[0] = self._kept.ctypes.data, self._kept.size
        return 0

    def __del__(self) -> None:
        library().kvc_generator_close(self._handle)
