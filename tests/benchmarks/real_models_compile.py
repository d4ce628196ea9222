"""Lines of the tables: a recipe, perhaps by samples, perhaps under a number of bytes.

`cpu_q4+samples+105M` is `kvc compile --recipe cpu_q4 --calibrate FILE --fit 105M`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from kvc.tools.cli import main as kvc

LETTERS = 20_000  # of the end of each text, which no table gets to
SAMPLES = "samples"

MakeSamples = Callable[[Path], Path]  # in a folder


def compiled(
    source: Path, line: str, folder: Path, samples: MakeSamples, all_logits: bool
) -> Path:
    """Return a bundle of a model.

    Args:
        source: a folder of transformers.
        line: of a table.
        folder: for the bundle.
        samples: makes a file of them, where the line asks for it.
        all_logits: whether the bundle has them.
    """
    recipe, *more = line.split("+")
    path = folder / f"{line}.kvc"
    given = ["compile", str(source), "--recipe", recipe, "-q", "-o", str(path)]
    given += ["--all-logits"] if all_logits else []
    for each in more:
        known = ["--calibrate", str(samples(folder))]
        given += known if each == SAMPLES else ["--fit", each]
    kvc(given, standalone_mode=False)
    return path


def text_samples(texts: Mapping[str, str]) -> MakeSamples:
    """Return what writes the ends of texts into a file."""

    def written(folder: Path) -> Path:
        path = folder / "samples.txt"
        path.write_text("\n\n".join(text[-LETTERS:] for text in texts.values()))
        return path

    return written
