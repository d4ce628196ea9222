"""`Samples`: the input data of calibration, read once, checked before any work.

In: a text, a sound, or arrays named after inputs; without any of these, the model
generates texts. Out: the results that `compile_program(calibrate=...)` needs: the
ranges of values, and the second moments of the inputs of linear layers.
"""

import hashlib
import io
import os
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from kvc.runtime.calibration.array_calls import (
    MOST_NBYTES,
    Arrays,
    call_with,
    read_arrays,
)
from kvc.runtime.calibration.input_moments import summed
from kvc.runtime.calibration.observing import observed
from kvc.runtime.calibration.token_calls import (
    MOST_SEQUENCES,
    Sequences,
    generate_sequences,
    read_sequences,
    run_sequences,
    text_sequences,
)
from kvc.runtime.embedding.rows import run_texts
from kvc.runtime.embedding.settings import TEXTS, task_of, text_settings
from kvc.runtime.sessions.program import Program
from kvc.runtime.speech import read_wave, spectrum_of, transcribe
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.calibration import Observed, SeenInputs
from kvc.schema.container import Progress, path_text
from kvc.schema.errors import BadSamples, KvcError, reason_of
from kvc.schema.frozen import frozen
from kvc.schema.provenance import Calibration

# Running a stateless model of texts on pieces of a text


_MOST: Final = 128  # the number of pieces
_LETTERS: Final = 400  # the length of a piece, some 100 tokens


def takes_texts(program: Program) -> bool:
    """Tell whether the metadata says that a program takes whole texts."""
    return TEXTS in program.metadata


def run_pieces(
    source: str, text: str, program: Program, progress: Progress
) -> tuple[int, int]:
    """Run pieces taken from the whole text; return the counts of pieces and tokens.

    Raises:
        BadSamples: the model refuses a piece.
        KvcError: as `Program.call`.
    """
    pieces = _pieces(text)
    try:
        settings = text_settings(program, task_of(program))
        tokenizer = tokenizer_of(program)
        count = 0
        for number, piece in enumerate(pieces):
            item = f"text {number + 1} of {len(pieces)}"
            progress("calibrate", number, len(pieces), item)
            count += len(tokenizer.encode(settings.prepared(piece, None)))
            run_texts(program, settings, [piece], None)
    except BadSamples:
        raise
    except KvcError as error:
        raise BadSamples(source=source, reason=str(error)) from error
    return len(pieces), count


def _pieces(text: str) -> list[str]:
    """Return a text in pieces: short lines are joined, long lines are cut."""
    pieces, begun = list[str](), ""
    for line in text.splitlines():
        for begin in range(0, len(line), _LETTERS):
            part = line[begin : begin + _LETTERS]
            if len(begun) + len(part) > _LETTERS:
                pieces.append(begun)
                begun = ""
            begun = f"{begun}\n{part}" if begun else part
    pieces.append(begun)
    whole = [piece for piece in pieces if piece.strip()]
    places = np.linspace(0, len(whole) - 1, min(_MOST, len(whole))).astype(int)
    return [whole[place] for place in places]


# Running a speech model on a sound


_MOST_SECONDS: Final = 10 * 60


def check_sound(path: str, raw: bytes) -> None:
    """Check that bytes are a complete wav file, of any sample rate.

    Raises:
        BadSamples: the bytes are not a complete wav file.
    """
    try:
        with wave.open(io.BytesIO(raw)) as file:
            count = file.getnframes()
            size = count * file.getnchannels() * file.getsampwidth()
            whole = size and len(file.readframes(count)) == size
    except (wave.Error, EOFError) as error:
        reason = f"not a plain wav file ({str(error) or 'it ends too early'})"
        raise BadSamples(source=path, reason=reason) from error
    if not whole:
        reason = "the sound is cut off" if size else "the sound is empty"
        raise BadSamples(source=path, reason=reason)


def run_sound(path: str, program: Program) -> tuple[int, int]:
    """Transcribe the beginning of a sound; return the numbers of segments and tokens.

    Raises:
        BadSamples: the model does not take the sound, or is not a speech model.
    """
    try:
        rate = spectrum_of(program.metadata).rate
    except KvcError as error:
        reason = f"the model transcribes no sound ({error}); give a text, or arrays"
        raise BadSamples(source=path, reason=reason) from error
    try:
        samples = read_wave(path, rate)[: rate * _MOST_SECONDS]
        with program.session() as session:
            segments = transcribe(session, samples).segments
    except KvcError as error:
        raise BadSamples(source=path, reason=str(error)) from error
    return len(segments), sum(len(one.tokens) for one in segments)


# Samples


_ARRAYS: Final = (".npy", ".npz", ".safetensors")
_SOUND: Final = ".wav"


@frozen
class _Aim:
    """What a calibration run is for.

    Attributes:
        method: the name of the calibration method, as recorded in the provenance.
        most: the greatest number of token sequences that a text is cut into.
        run: the function that runs the token sequences.
    """

    method: str
    most: int
    run: Callable[[str, Program, Sequences, Progress], None]


# Finds the least and the greatest value over all samples.
_RANGES: Final = _Aim("minmax", MOST_SEQUENCES, run_sequences)
# Rounds weights column by column, by the moments of their inputs.
_INPUTS: Final = _Aim("gptq", 4 * MOST_SEQUENCES, read_sequences)


class Samples:
    """Sample inputs of a model, on which calibration runs it.

    The model's methods run on the samples in float32, with the model's states. A
    language model reads each sequence of tokens in chunks; if ranges of values are
    wanted, decode runs the last tokens of the sequence one by one. For other models,
    the methods are called in program order on one session.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the samples from a file.

        Args:
            path: the path of the file. Models that read text take a text in UTF-8, and
                speech models a .wav file. Any model takes a .npz or .safetensors file
                of arrays that are named after the inputs, or `METHOD.INPUT` if several
                methods have an input of the same name. A model with a single input also
                takes a .npy file. An array has the shape of the input, or one more axis
                in front with one entry for each call. The array `tokens` of a language
                model is int64 [tokens] or [sequences, tokens].

        Raises:
            BadSamples: the file cannot be read, is empty, or holds NaN or infinity.
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
        """Return samples that the model itself generates, with a fixed random seed."""
        made = object.__new__(cls)
        made._source, made._digest = "generated", ""
        made._text, made._arrays, made._sounds = "", Arrays({}), False
        return made

    def observe(self, bundle: Path, progress: Progress) -> Observed:
        """Run a bundle, and return the ranges of the values in its partitions.

        Raises:
            BadSamples: the samples do not fit the model.
            SamplesNotFinite: the model computes a NaN.
            KvcError: a call fails.
        """
        with observed(bundle) as observation:
            used = self._run(observation.program, _RANGES, progress)
            return Observed(observation.ranges(), used, observation.scores())

    def sum_inputs(self, bundle: Path, progress: Progress) -> SeenInputs:
        """Run a bundle of linear layers, and return the second moments of their inputs.

        Raises:
            BadSamples: the samples do not fit the model.
            SamplesNotFinite: the model computes a NaN or an infinity.
            CannotWrite: the disk has no room for the sums.
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
