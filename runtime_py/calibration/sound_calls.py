"""Run a model of speech on a sound, as `transcribe` does."""

import io
import wave
from typing import Final

from kvc.runtime.sessions.program import Program
from kvc.runtime.speech import read_wave, spectrum_of, transcribe
from kvc.schema.errors import BadSamples, KvcError

_MOST_SECONDS: Final = 10 * 60


def check_sound(path: str, raw: bytes) -> None:
    """Check that bytes are a whole sound, of whatever rate.

    Raises:
        BadSamples: they are not.
    """
    try:
        with wave.open(io.BytesIO(raw)) as file:
            count = file.getnframes()
            size = count * file.getnchannels() * file.getsampwidth()
            whole = size and len(file.readframes(count)) == size
    except (wave.Error, EOFError) as error:
        reason = f"no wav file of plain samples ({str(error) or 'it ends too early'})"
        raise BadSamples(source=path, reason=reason) from error
    if not whole:
        reason = "the sound is cut off" if size else "the sound is empty"
        raise BadSamples(source=path, reason=reason)


def run_sound(path: str, program: Program) -> tuple[int, int]:
    """Write down the beginning of a sound; return how many segments and tokens it has.

    Raises:
        BadSamples: it is no sound that the model takes, or the model takes none.
    """
    try:
        rate = spectrum_of(program.metadata).rate
    except KvcError as error:
        reason = f"the model writes down no sound ({error}); give a text, or arrays"
        raise BadSamples(source=path, reason=reason) from error
    try:
        samples = read_wave(path, rate)[: rate * _MOST_SECONDS]
        with program.session() as session:
            segments = transcribe(session, samples).segments
    except KvcError as error:
        raise BadSamples(source=path, reason=str(error)) from error
    return len(segments), sum(len(one.tokens) for one in segments)
