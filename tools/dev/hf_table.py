"""Write the pages of architectures and recipes in compiler/hugging_face.

`python tools/dev/hf_table.py [PAGE...]` builds the tiny random models of
`tests/support`, compiles each, and compares logits: those of float32 with transformers'
own for MODELS.md, and those of each recipe for QUALITY.md. A run takes about an hour.
With `--new`, existing lines of the pages stay as they are, and only missing lines are
made. Each line is written at once, so `--new` continues an interrupted run.
`tests/benchmarks/real_models.py` writes the part of QUALITY.md on trained models. Not
shipped.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import transformers

from kvc.compiler import CacheConfig, export_hf
from kvc.schema.errors import CompileError
from kvc.tools.dev.hf_texts import (
    HEAD,
    QUALITY,
    RANDOM,
    REMARKS,
    ROUNDED,
    SEEING,
    SIZED,
    TRAINED,
    WITH_ENCODER,
    WITHOUT_CACHE,
)
from kvc.tools.dev.page_sections import kept_part
from kvc.tools.reports.methods import describe_methods

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "compiler" / "hugging_face"
sys.path.insert(0, os.fspath(ROOT / "tests" / "support"))

import encoder_models  # noqa: E402  they lie beside the tests
import hf_models  # noqa: E402
import hf_parity  # noqa: E402
import hf_quality  # noqa: E402
import seeing_models  # noqa: E402
import seq2seq_models  # noqa: E402
import sized_pictures  # noqa: E402

# One model of each family; recipes cost variants and relatives as much accuracy.
FAMILIES = hf_models.NAMED | hf_models.RECURRENT | hf_models.LATENT


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page, with one line for each model.

    Attributes:
        title: heading above the table; no other table has the same heading.
        head: line of column titles, and the line under it.
        names: names of models of `hf_models`.
        line: function that makes the line of a model.
    """

    title: str
    head: str
    names: Iterable[str]
    line: Callable[[str], str]

    def fits(self, line: str) -> bool:
        """Tell whether a line has all columns, each with a figure."""
        columns = self.head.splitlines()[-1].count(" | ")
        return line.count(" | ") == columns and "| - |" not in line


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of a page between two marks, which another program writes."""

    mark: str


Lines = dict[tuple[str, str], str]  # keys: title of a table, name of a model


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=list(PAGES))
    parser.add_argument("--new", action="store_true", help="keep the lines they have")
    options = parser.parse_args()
    if unknown := set(options.pages) - PAGES.keys():
        parser.error(f"no such page: {unknown}; there are {', '.join(PAGES)}")
    lines = _known(PAGES.keys() if options.new else PAGES.keys() - set(options.pages))
    transformers.logging.set_verbosity_error()
    _write(lines)
    for page in options.pages:
        for table in PAGES[page]:
            if isinstance(table, Table):
                for name in table.names:
                    _make(lines, table, name)
    _write(lines)


def _make(lines: Lines, table: Table, name: str) -> None:
    """Make a line, unless there is one that fits, and write the pages with it."""
    before = lines.get((table.title, name))
    if before is None or not table.fits(before):
        lines[table.title, name] = table.line(name)
        print(lines[table.title, name], end="", file=sys.stderr, flush=True)
        _write(lines)


def _known(pages: Iterable[str]) -> Lines:
    lines, title = Lines(), ""
    for page in pages:
        for line in (FOLDER / page).read_text(encoding="utf-8").splitlines(True):
            title = line.strip() if line.startswith("## ") else title
            if line.startswith("| "):
                lines[title, line.split(" | ")[0].removeprefix("| ")] = line
    return lines


def _write(lines: Lines) -> None:
    for page, parts in PAGES.items():
        before = (FOLDER / page).read_text(encoding="utf-8")
        texts = [_laid_out(part, lines, before) for part in parts]
        (FOLDER / page).write_text("\n".join(texts), encoding="utf-8")


def _laid_out(part: str | Table | Kept, lines: Lines, before: str) -> str:
    """Return the new text of a part of a page, from its text before."""
    if isinstance(part, str):
        return part
    if isinstance(part, Kept):
        return kept_part(before, part.mark)
    made = [lines.get((part.title, name), "") for name in part.names]
    return f"{part.title}\n\n{part.head}{''.join(made)}"


def _model_line(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        parity = hf_parity.compare(name, Path(folder))
        held, found = hf_quality.qualities(name, Path(folder), (INT8,))
    quality = found[INT8]
    assert quality is not None  # recipes with float32 caches
    noticed = "yes" if parity.control > hf_parity.NOTICED else "no"
    return (
        f"| {name} | {parity.prefill:.1e} | {parity.decode:.1e} | "
        f"{parity.agreement:.0%} | {parity.control:.3f} | {noticed} | "
        f"{', '.join(held.kinds)} | {held.per_token} | {held.fixed} | "
        f"{quality.agreement:.0%} |\n"
    )


def _encoder_line(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        found = seq2seq_models.compare(name, Path(folder))
    return (
        f"| {name} | {found.prefill:.1e} | {found.decode:.1e} | "
        f"{found.agreement:.0%} | {found.own:.4f} | {found.cross:.4f} | "
        f"{'yes' if found.noticed else 'no'} |\n"
    )


def _text_line(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        found = encoder_models.compare(name, Path(folder))
    return (
        f"| {name} | {found.far:.1e} | {found.padded:.3f} | {found.changed:.3f} | "
        f"{_left_by_recipes(name)} |\n"
    )


def _picture_line(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        far, changed = encoder_models.compare_pictures(name, Path(folder))
    return f"| {name} | {far:.1e} | {changed:.3f} | {_left_by_recipes(name)} |\n"


def _seeing_line(name: str) -> str:
    model = seeing_models.build(*seeing_models.MODELS[name])
    with tempfile.TemporaryDirectory() as folder:
        found = seeing_models.compare(model, model, Path(folder), "cpu_fp32")
    return _seen(name, found)


def _sized_line(name: str) -> str:
    model = sized_pictures.model(name)
    with tempfile.TemporaryDirectory() as folder:
        source = sized_pictures.write_folder(Path(folder) / "model", name)
        path = sized_pictures.write_bundle(source, Path(folder) / "model.kvc", 1)
        found = sized_pictures.compare(path, model)
    return _seen(name, found)


def _seen(name: str, found: seeing_models.Parity) -> str:
    figures = f"{found.prefill:.1e} | {found.decode:.1e} | {found.control:.3f}"
    return f"| {name} | {figures} | {found.left} |\n"


def _unseeing_line(name: str) -> str:
    kind, settings, _ = seeing_models.REFUSED[name]
    try:
        export_hf(seeing_models.build(kind, settings))
    except CompileError as error:
        return f"| {name} | {error} |\n"
    raise AssertionError(f"{name} compiles; it is not refused any more")


def _left_by_recipes(name: str) -> str:
    """Return how many operators of a model each recipe leaves to PyTorch."""
    counts = []
    for recipe in ("cpu_fp32", "cpu_q8", "xnnpack_q8"):
        program = export_hf(encoder_models.build(name), recipe=recipe).program
        methods = describe_methods(program)
        counts.append(sum(sum(method.left.values()) for method in methods))
    return ", ".join(map(str, counts))


_qualities: dict[str, dict[hf_quality.Way, hf_quality.Quality | None]] = {}


def _quality_of(name: str) -> Iterator[hf_quality.Quality | None]:
    """Yield the comparison of each recipe; two tables of a page use it."""
    if name not in _qualities:
        with tempfile.TemporaryDirectory() as folder:
            _qualities[name] = hf_quality.qualities(name, Path(folder))[1]
    for way in hf_quality.WAYS:
        yield _qualities[name][way]


def _cost_line(name: str) -> str:
    cells = [
        "none" if one is None else f"{one.cosine:.4f}, {one.agreement:.0%}"
        for one in _quality_of(name)
    ]
    return f"| {name} | {' | '.join(cells)} |\n"


def _rounded_line(name: str) -> str:
    cells = [
        "none" if one is None else f"{one.rounded:.0e}, {one.control:.0e}"
        for one in _quality_of(name)
    ]
    return f"| {name} | {' | '.join(cells)} |\n"


def _refused_line(name: str) -> str:
    cache = CacheConfig(max_length=hf_parity.CAPACITY)
    try:
        export_hf(hf_models.build(name), cache=cache)
    except CompileError as error:
        return f"| {name} | {' '.join(str(error).split())} |\n"
    raise SystemExit(f"{name} is not refused any more")


def _head(*titles: object) -> str:
    return (
        f"| {' | '.join(map(str, titles))} |\n| {' | '.join(['---'] * len(titles))} |\n"
    )


INT8 = hf_quality.Way("cpu_q8")
COLUMNS = _head(
    "architecture", "prefill", "decode", "best", "control", "noticed", "states",
    "a token", "fixed", "int8",
)  # fmt: skip
WAYS = _head("architecture", *hf_quality.WAYS)


def _models(title: str, names: Iterable[str]) -> Table:
    return Table(title, COLUMNS, names, _model_line)


PAGES: dict[str, tuple[str | Table | Kept, ...]] = {
    "MODELS.md": (
        HEAD.format(
            version=transformers.__version__,
            lengths=", ".join(map(str, hf_parity.LENGTHS)),
            chunks=", ".join(map(str, hf_parity.CHUNKS)),
            steps=hf_parity.STEPS,
            window=hf_models.WINDOW,
            noticed=hf_parity.NOTICED,
            positions=hf_parity.STEPS + len(hf_parity.CHUNKS),
        ),
        _models("## Main architectures", hf_models.NAMED),
        _models("## Variants of these", hf_models.VARIANTS),
        _models("## Other architectures", hf_models.OTHERS),
        _models("## Recurrent and hybrid architectures", hf_models.RECURRENT),
        _models("## Latent attention", hf_models.LATENT),
        WITH_ENCODER.format(
            heard=", ".join(map(str, seq2seq_models.HEARD)),
            chunks=", ".join(map(str, seq2seq_models.CHUNKS)),
            steps=seq2seq_models.STEPS,
            noticed=seq2seq_models.NOTICED,
        ),
        Table(
            "## Encoder and decoder",
            _head(
                "architecture", "prefill", "decode", "best", "own", "cross", "noticed"
            ),
            seq2seq_models.SEQ2SEQ,
            _encoder_line,
        ),
        WITHOUT_CACHE.format(
            calls=len(encoder_models.LENGTHS),
            lengths="; ".join(
                ", ".join(map(str, lengths)) for lengths in encoder_models.LENGTHS
            ),
            noticed=encoder_models.NOTICED,
        ),
        Table(
            "## Texts without a cache",
            _head("architecture", "far", "padded", "changed", "left"),
            encoder_models.TEXTS,
            _text_line,
        ),
        Table(
            "## Pictures",
            _head("architecture", "far", "changed", "left"),
            encoder_models.PICTURES,
            _picture_line,
        ),
        SEEING.format(
            chunks=", ".join(map(str, seeing_models.CHUNKS)),
            steps=seeing_models.STEPS,
            noticed=seeing_models.NOTICED,
        ),
        Table(
            "## Texts with pictures",
            _head("architecture", "prefill", "decode", "control", "left"),
            seeing_models.MODELS,
            _seeing_line,
        ),
        SIZED.format(chunk=sized_pictures.CHUNK, steps=sized_pictures.MORE),
        Table(
            "## Texts with pictures of sizes of their own",
            _head("architecture", "prefill", "decode", "control", "left"),
            seeing_models.SIZED,
            _sized_line,
        ),
        Table(
            "## Pictures refused",
            _head("architecture", "what the error says"),
            seeing_models.REFUSED,
            _unseeing_line,
        ),
        REMARKS,
        Table(
            "## Refused",
            _head("architecture", "what the error says"),
            hf_models.REFUSED,
            _refused_line,
        ),
    ),
    "QUALITY.md": (
        QUALITY.format(version=transformers.__version__),
        Kept(TRAINED),
        RANDOM.format(positions=hf_parity.STEPS + len(hf_parity.CHUNKS)),
        Table("## Beside the model in float32", WAYS, FAMILIES, _cost_line),
        ROUNDED.format(
            exact=hf_quality.EQUAL["int8"], float16=hf_quality.EQUAL["float16"]
        ),
        Table("## Beside the model that rounds as it", WAYS, FAMILIES, _rounded_line),
    ),
}


if __name__ == "__main__":
    main()
