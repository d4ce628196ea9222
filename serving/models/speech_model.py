"""`SpeechModel`: a bundle that writes down what is said.

In: the content of a file of sound. Out: a `Transcription`. A call takes the processor
for as long as it runs: whoever calls does so in a thread of its own.
"""

from io import BytesIO
from typing import Final

import numpy as np

from kvc.runtime.sessions.program import Program
from kvc.runtime.speech import Transcription, read_wave, spectrum_of, transcribe
from kvc.runtime.speech.waves import Samples
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSound
from kvc.schema.frozen import frozen

_WAVE: Final = b"RIFF"
_NAME: Final = "the sound"
_MOST_SECONDS: Final = 3 * 60 * 60


@frozen
class Heard:
    """What was said in a sound.

    Attributes:
        made: the text, with times.
        seconds: the length of the sound.
    """

    made: Transcription
    seconds: float


class SpeechModel(Closing):
    """A model that writes down what is said.

    Attributes:
        name: its name.
        program: the loaded bundle.
    """

    does = "writes down what is said"
    reads = ("audio",)

    def __init__(self, name: str, program: Program) -> None:
        """Read the settings of a bundle.

        Raises:
            KvcError: as `spectrum_of` and `tokenizer_of`.
        """
        self.name, self.program = name, program
        self._rate = spectrum_of(program.metadata).rate
        self._tokenizer = tokenizer_of(program)

    def hear(
        self,
        raw: bytes,
        language: str | None,
        task: str | None,
        times: bool,
        temperature: float,
    ) -> Heard:
        """Return what is said in the content of a file.

        Args:
            raw: the content of the file.
            language: the language, such as "en"; None to let the model tell.
            task: "transcribe" or "translate"; None as the bundle says.
            times: whether to tell when each sentence begins and ends.
            temperature: 0 to take the likeliest words.

        Raises:
            BadSound: it is not a sound that can be read, or has another rate.
            KvcError: as `kvc.runtime.transcribe`.
        """
        samples = samples_in(raw, self._rate)
        with self.program.session() as session:
            made = transcribe(
                session,
                samples,
                language=language,
                task=task,
                timestamps=times or None,
                tokenizer=self._tokenizer,
                temperature=temperature,
            )
        return Heard(made, len(samples) / self._rate)

    def close(self, seconds: float = 0.0) -> None:
        """Close the program."""
        self.program.close()


def samples_in(raw: bytes, rate: int) -> Samples:
    """Return the samples in the content of a file, float32 [n].

    Plain wav files are read by kvc; others by the package soundfile, if it is there.

    Raises:
        BadSound: it is not a sound that can be read, or has another rate.
    """
    if raw.startswith(_WAVE):
        return read_wave(BytesIO(raw), rate)
    try:
        import soundfile
    except ImportError as error:
        reason = "it is not a wav file, and soundfile, which reads others, is missing"
        raise BadSound(path=_NAME, reason=reason, rate=rate) from error
    try:
        with soundfile.SoundFile(BytesIO(raw)) as file:
            _check_size(file.samplerate, file.frames, file.channels, rate)
            found = file.read(dtype="float32", always_2d=True)
    except RuntimeError as error:
        reason = "it is not a sound that soundfile reads"
        raise BadSound(path=_NAME, reason=reason, rate=rate) from error
    samples: Samples = np.asarray(found, np.float32).mean(axis=1)
    return samples


def _check_size(its_rate: int, frames: int, channels: int, rate: int) -> None:
    """Check a sound before it is unpacked: a megabyte may hold days of silence.

    Raises:
        BadSound: it has another rate, or is too long.
    """
    if its_rate != rate:
        reason = f"it has {its_rate} samples a second"
        raise BadSound(path=_NAME, reason=reason, rate=rate)
    if frames * channels > _MOST_SECONDS * rate:
        reason = f"it has more than {_MOST_SECONDS:,} s, all channels together"
        raise BadSound(path=_NAME, reason=reason, rate=rate)
