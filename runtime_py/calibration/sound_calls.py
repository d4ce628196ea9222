"""Run a model of speech on a sound, as `transcribe` does."""

from typing import Final

from kvc.runtime.program import Program
from kvc.runtime.speech import read_wave, spectrum_of, transcribe
from kvc.schema.errors import BadSamples, KvcError

_MOST_SECONDS: Final = 10 * 60


def run_sound(path: str, program: Program) -> tuple[int, int]:
    """Write down the beginning of a sound; return how many segments and tokens it has.

    Raises:
        BadSamples: it is no sound that the model takes, or the model takes none.
    """
    try:
        rate = spectrum_of(program.metadata).rate
        samples = read_wave(path, rate)[: rate * _MOST_SECONDS]
        with program.session() as session:
            segments = transcribe(session, samples).segments
    except KvcError as error:
        raise BadSamples(source=path, reason=str(error)) from error
    return len(segments), sum(len(one.tokens) for one in segments)
