"""`kvc transcribe`: turn recorded speech into text.

The text goes to stdout, after the file's name if there are several files. The time that
the transcription took goes to stderr.
"""

import time
from typing import TYPE_CHECKING

import click

from kvc.schema.text import escape
from kvc.tools.generation_options import generation_options, telling_what_is_ignored
from kvc.tools.options import Loading, loading_options, open_program

if TYPE_CHECKING:
    from kvc.runtime.generation import Arguments


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("sounds", metavar="WAV...", nargs=-1, required=True)
@click.option(
    "--language",
    metavar="CODE",
    help="The language that is spoken, such as en.  [default: the model says it]",
)
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    help="Write down what is said, or translate it into English.  [default: as the "
    "bundle says, or transcribe]",
)
@click.option(
    "--timestamps", is_flag=True, help="Print when each sentence begins and ends."
)
@generation_options
@loading_options
def transcribe(
    bundle: str,
    sounds: tuple[str, ...],
    language: str | None,
    task: str | None,
    timestamps: bool,
    settings: "Arguments",
    loading: Loading,
) -> None:
    """Write down what is said in each WAV with the speech model in BUNDLE.

    A WAV has plain samples, at the rate that the model takes (16000 a second of
    Whisper). One longer than the model hears at once is transcribed window by window.

    Example: kvc transcribe whisper.kvc talk.wav
    """
    from kvc.runtime.speech import read_wave, spectrum_of, transcribe

    with open_program(bundle, loading) as program, program.session() as session:
        spectrum = spectrum_of(program.metadata)
        program.pack()  # or the figures would be of that, not of the model
        for sound in sounds:
            samples = read_wave(sound, spectrum.rate)
            began = time.perf_counter()
            with telling_what_is_ignored():
                made = transcribe(
                    session,
                    samples,
                    language=language,
                    task=task,
                    timestamps=timestamps or None,
                    **settings,
                )
            seconds = time.perf_counter() - began
            if len(sounds) > 1:
                click.echo(f"{escape(sound)}:")
            lines = [
                f"{s.start:8.2f} {s.end:8.2f}  {s.text.strip()}" for s in made.segments
            ]
            click.echo("\n".join(lines) if timestamps else made.text)
            heard = len(samples) / spectrum.rate
            spoken = f"; language {escape(made.language)}" if made.language else ""
            click.echo(f"{heard:.1f} s of sound in {seconds:.1f} s{spoken}", err=True)
