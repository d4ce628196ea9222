"""`Samples`: what a model is calibrated with, read once, checked before any work.

In: a text, or arrays named as inputs, or nothing, for texts that the model makes
itself. Out: what `compile_program(calibrate=...)` asks for the ranges of values.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from kvc.runtime.calibration.array_calls import call_with
from kvc.runtime.calibration.array_files import MOST_NBYTES, Arrays, read_arrays
from kvc.runtime.calibration.observing import observed
from kvc.runtime.calibration.token_calls import (
    Sequences,
    generate_sequences,
    run_sequences,
    text_sequences,
)
from kvc.runtime.program import Program
from kvc.schema.calibration import Observed
from kvc.schema.container import Progress, path_text
from kvc.schema.errors import BadSamples, reason_of
from kvc.schema.provenance import Calibration

METHOD: Final = "minmax"  # the least and the greatest number of all samples
_ARRAYS: Final = (".npy", ".npz", ".safetensors")


class Samples:
    """Samples of what a model is given.

    Methods run on them by the reference, with their states: a language model reads
    each sequence of tokens in chunks and continues it token by token; other methods
    are called in their order, on one session.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Args:
            path: of a text in UTF-8, for models that read text; or a .npz or
                .safetensors file of arrays with the names of inputs, `METHOD.INPUT`
                where several methods have one of this name; or a .npy file, for the
                only input. An array has the shape of the input, or one axis more
                before it, of as many calls. `tokens` of a language model are int64
                [tokens] or [sequences, tokens].

        Raises:
            BadSamples: it cannot be read, is empty, or holds what is no number.
        """
        self._source = path_text(path)
        raw = _read(self._source)
        self._digest = hashlib.sha256(raw).hexdigest()
        self._text, self._arrays = "", Arrays({})
        if Path(self._source).suffix in _ARRAYS:
            self._arrays = read_arrays(self._source, raw)
        else:
            self._text = _as_text(self._source, raw)

    @classmethod
    def generated(cls) -> "Samples":
        """Return samples that the model makes itself, the same ones each time."""
        made = object.__new__(cls)
        made._source, made._digest = "generated", ""
        made._text, made._arrays = "", Arrays({})
        return made

    def observe(self, bundle: Path, progress: Progress) -> Observed:
        """Run a bundle; return the ranges of the values of its partitions.

        Raises:
            BadSamples: the samples are not for this model.
            SamplesNotFinite: it computes a NaN.
            KvcError: a call fails.
        """
        with observed(bundle) as observation:
            used = self._run(observation.program, progress)
            return Observed(observation.ranges(), used, observation.scores())

    def _run(self, program: Program, progress: Progress) -> Calibration:
        if self._arrays.by_name:
            sequences = self._arrays.sequences_for(program)
            if sequences is None:
                calls = call_with(self._arrays, program, progress)
                return Calibration("arrays", self._digest, calls, 0, METHOD)
            return self._run_tokens(
                "arrays", self._digest, program, sequences, progress
            )
        if self._text:
            sequences = text_sequences(self._source, self._text, program)
            return self._run_tokens("text", self._digest, program, sequences, progress)
        sequences = generate_sequences(self._source, program, progress)
        digest = hashlib.sha256(repr(sequences).encode()).hexdigest()
        return self._run_tokens("generated", digest, program, sequences, progress)

    def _run_tokens(
        self,
        kind: str,
        digest: str,
        program: Program,
        sequences: Sequences,
        progress: Progress,
    ) -> Calibration:
        run_sequences(self._source, program, sequences, progress)
        count = sum(map(len, sequences))
        return Calibration(kind, digest, len(sequences), count, METHOD)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  "" would be "."
            raw = file.read(MOST_NBYTES + 1)
    except (OSError, ValueError) as error:
        reason = f"cannot be read: {reason_of(error)}"
        raise BadSamples(source=path, reason=reason) from error
    if not raw:
        raise BadSamples(source=path, reason="the file is empty")
    if len(raw) > MOST_NBYTES:
        reason = f"more than {MOST_NBYTES} bytes; a thousandth of that is enough"
        raise BadSamples(source=path, reason=reason)
    return raw


def _as_text(path: str, raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        known = ", ".join(_ARRAYS)
        reason = (
            f"byte 0x{raw[error.start]:02x} at {error.start} is no UTF-8 text; files "
            f"of arrays have names that end in {known}"
        )
        raise BadSamples(source=path, reason=reason) from error
    if not text.strip():
        raise BadSamples(source=path, reason="the text is empty")
    return text
