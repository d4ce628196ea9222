"""`Samples`: what a model is calibrated with, read once, checked before any work.

In: a text, or arrays named as inputs, or nothing, for texts that the model makes
itself. Out: what `compile_program(calibrate=...)` asks for: ranges of values, and what
weights are multiplied with.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvc.runtime.calibration.array_calls import call_with
from kvc.runtime.calibration.array_files import MOST_NBYTES, Arrays, read_arrays
from kvc.runtime.calibration.input_moments import summed
from kvc.runtime.calibration.observing import observed
from kvc.runtime.calibration.sound_calls import check_sound, run_sound
from kvc.runtime.calibration.text_calls import run_pieces, takes_texts
from kvc.runtime.calibration.token_calls import (
    MOST_SEQUENCES,
    Sequences,
    generate_sequences,
    read_sequences,
    run_sequences,
    text_sequences,
)
from kvc.runtime.sessions.program import Program
from kvc.schema.calibration import Observed, SeenInputs
from kvc.schema.container import Progress, path_text
from kvc.schema.errors import BadSamples, reason_of
from kvc.schema.frozen import frozen
from kvc.schema.provenance import Calibration

_ARRAYS: Final = (".npy", ".npz", ".safetensors")
_SOUND: Final = ".wav"


@frozen
class _Aim:
    """What samples are run for.

    Attributes:
        method: how provenance calls what is done with them.
        most: sequences of tokens that a text is cut into.
        run: runs sequences.
    """

    method: str
    most: int
    run: Callable[[str, Program, Sequences, Progress], None]


# The least and the greatest number of all samples.
_RANGES: Final = _Aim("minmax", MOST_SEQUENCES, run_sequences)
# Weights are rounded column by column, by the moments of their inputs.
_INPUTS: Final = _Aim("gptq", 4 * MOST_SEQUENCES, read_sequences)


class Samples:
    """Samples of what a model is given.

    Methods run on them in float32, with their states: a language model reads each
    sequence of tokens in chunks, and for ranges of values continues it token by token;
    other methods are called in their order, on one session.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Args:
            path: of a text in UTF-8, for models that read text; a sound, .wav, for
                those that write it down; or a .npz or .safetensors file of arrays with
                the names of inputs, `METHOD.INPUT` where several methods have one of
                this name; or a .npy file, for the only input. An array has the shape of
                the input, or one axis more before it, of as many calls. `tokens` of a
                language model are int64 [tokens] or [sequences, tokens].

        Raises:
            BadSamples: it cannot be read, is empty, or holds what is no number.
        """
        self._source = path_text(path)
        raw = _read(self._source)
        self._digest = hashlib.sha256(raw).hexdigest()
        self._text, self._arrays = "", Arrays({})
        self._sounds = Path(self._source).suffix.lower() == _SOUND
        if self._sounds:
            check_sound(self._source, raw)
            return
        if Path(self._source).suffix in _ARRAYS:
            self._arrays = read_arrays(self._source, raw)
        else:
            self._text = _as_text(self._source, raw)

    @classmethod
    def generated(cls) -> "Samples":
        """Return samples that the model makes itself, the same ones each time."""
        made = object.__new__(cls)
        made._source, made._digest = "generated", ""
        made._text, made._arrays, made._sounds = "", Arrays({}), False
        return made

    def observe(self, bundle: Path, progress: Progress) -> Observed:
        """Run a bundle; return the ranges of the values of its partitions.

        Raises:
            BadSamples: the samples are not for this model.
            SamplesNotFinite: it computes a NaN.
            KvcError: a call fails.
        """
        with observed(bundle) as observation:
            used = self._run(observation.program, _RANGES, progress)
            return Observed(observation.ranges(), used, observation.scores())

    def sum_inputs(self, bundle: Path, progress: Progress) -> SeenInputs:
        """Run a bundle whose partitions are linear layers; return what these multiply.

        Raises:
            BadSamples: the samples are not for this model.
            SamplesNotFinite: it computes a NaN or an infinity.
            CannotWrite: there is no room for the sums.
            KvcError: a call fails.
        """
        with summed(bundle) as (program, inputs):
            used = self._run(program, _INPUTS, progress)
            return SeenInputs(inputs.by_weight(), used)

    def _run(self, program: Program, aim: _Aim, progress: Progress) -> Calibration:
        source = self._source
        kind, digest, sequences = "text", self._digest, None
        if self._sounds:
            segments, tokens = run_sound(source, program)
            return Calibration("sound", digest, segments, tokens, aim.method)
        if self._arrays.by_name:
            kind, sequences = "arrays", self._arrays.sequences_for(program)
            if sequences is None:
                calls = call_with(self._arrays, program, progress)
                return Calibration(kind, digest, calls, 0, aim.method)
        elif self._text and takes_texts(program):
            texts, tokens = run_pieces(source, self._text, program, progress)
            return Calibration(kind, digest, texts, tokens, aim.method)
        elif self._text:
            sequences = text_sequences(source, self._text, program, aim.most)
        else:
            kind, sequences = "generated", generate_sequences(source, program, progress)
            digest = hashlib.sha256(repr(sequences).encode()).hexdigest()
        aim.run(source, program, sequences, progress)
        tokens = sum(map(len, sequences))
        return Calibration(kind, digest, len(sequences), tokens, aim.method)


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
