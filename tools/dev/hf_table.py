"""Write compiler/hugging_face/MODELS.md and QUALITY.md: architectures, and recipes.

`python tools/dev/hf_table.py` builds the tiny random models of `tests/support`,
compiles each, and compares logits: with transformers' own in float32, and by each
recipe; about an hour. With `--new` the lines that the pages have stay as they are, and
only those that they lack are made. Each line is written when it is made, so a run that
was interrupted goes on with `--new`. Not shipped.
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

HEAD = """\
# Architectures of transformers

Written by `python tools/dev/hf_table.py` with transformers {version}; do not edit.

Each line is a model of two layers (Gemma 3n: four) with random weights (see
`tests/support/hf_models.py`), large enough that a wrong row of a cache shows. Its
bundle is compared with the model itself, which runs on the whole text with eager
attention and no cache. Figures are differences of logits divided by the standard
deviation of the logits.

- *prefill*: the largest difference after prefills of {lengths} tokens, and of 12 in
  chunks of {chunks}.
- *decode*: the largest difference in {steps} steps after that, past every sliding
  window (of {window} tokens).
- *best*: how many of these steps have the same best token.
- *control*: the same comparison with one row of one layer's cache set to zero: the
  smallest of the layers' differences. It must be far larger than the other two.
- *noticed*: whether *control* is above {noticed:g}, which the tests require.
- *states*: what its layers keep: all positions (linear), a ring of the last ones,
  latents of all positions, the state of a recurrence, the last inputs of a convolution.
- *a token*: bytes that these take for each token of the text, in float32.
- *fixed*: bytes however long the text is, in float32.
- *int8*: how many of {positions} positions have the same best token with the recipe
  `cpu_q8`. [QUALITY.md](QUALITY.md) has the other recipes.

A dash is what has not been measured; the command with `--new` measures it.
"""
WITH_ENCODER = """\
In the next table a decoder attends to what an encoder made. Its logits are compared
after encodings of {heard} tokens, or three of features or pictures, chunks of {chunks},
and {steps} steps (`tests/support/seq2seq_models.py`). *own* is the control with a wrong
row of the decoder's own caches, *cross* that with one of the cross caches; both must be
{noticed:g} times the differences.

"""
WITHOUT_CACHE = """\
In the next two tables a model has no cache. Its embeddings (the mean of a text's
states, or the features or first state of a picture) are compared with those of the
model in eager attention, in standard deviations of what the model makes
(`tests/support/encoder_models.py`).

- *far*: the largest difference, of {calls} calls with rows of {lengths} tokens, or of
  three pictures.
- *padded*: the control: the smallest difference of such a call from the model that sees
  padding, too; a causal model never does.
- *changed*: the control: the smallest difference of a call from the model with another
  first token in each row, or with the pictures in another order.
- *left*: how many operators of all methods `cpu_fp32`, `cpu_q8` and `xnnpack_q8` leave
  to PyTorch.

Controls must be above {noticed:g}.

"""
SEEING = """\
In the next table a model reads texts with pictures. A text with two pictures is fed as
embeddings with the recipe `cpu_fp32`, and compared with the model itself, which is
given the whole text and both pictures at once (`tests/support/seeing_models.py`).

- *prefill*: the largest difference after chunks of {chunks} positions, whose ends are
  within pictures; those of Gemma 3 begin and end with pictures, too.
- *decode*: the largest difference in {steps} steps after them.
- *control*: the same with one row of a picture's embeddings replaced. It must be above
  {noticed:g}.
- *left*: how many operators of all methods are left to PyTorch.

"""
SIZED = """\
In the next table pictures have sizes of their own, and positions axes. A text with
three pictures is fed in chunks of {chunk} at the most, {steps} steps follow, and the
first of them once more after a rewind. The control is the least of three: a zeroed row
of keys, of values, and of the numbers that follow tokens.

"""
REMARKS = """\
## Remarks

- Mixtures of experts run as `kvc::expert_linear`, which reads only the matrices of the
  chosen experts. Recipes with int8 or int4 linear layers store them as int8, with a
  scale for each output channel of each expert; `bf16` as bfloat16. They run in the
  backend `cpu` or on PyTorch, not in XNNPACK.
- With `cpu_fp32`, `cpu_bf16` and `cpu_q8` each architecture runs whole in the backend
  `cpu`, without PyTorch: `pytest -m exhaustive
  tests/end_to_end/hugging_face/test_native.py` tests this. Two leave a few operators
  to PyTorch: DBRX a norm in each layer, Gemma 3n the cutoff of its sparse layers.
- A layer with a sliding window keeps its cache in a ring, if that has fewer slots than
  the cache has positions. It has the sum of the window, the longest prefill less one,
  and `CacheConfig(slack=)`.
- In a batch with rows of different lengths, each row gives what the model gives for it
  alone, in rings too: `pytest -m exhaustive
  tests/end_to_end/hugging_face/test_batches.py` tests this for each architecture.
- Recurrent layers and short convolutions have states of one size, however long the
  text: the state of a recurrence is written in place, the last inputs of a convolution
  are copied. A prompt is computed in chunks of 64 tokens (Mamba, Zamba, RecurrentGemma
  and Kimi Linear: token by token). Such a state is rewound by the snapshots that a
  session was asked for, `session(snapshots=n)`.
- LongCat has two caches in each layer. A token that goes to an expert that returns what
  it is given costs as much as one that goes to another: the product counts 0 times.
- The gates of RecurrentGemma's recurrence and the projections of a Zamba mixer are
  products for each head; recipes leave these matrices float32.
- Latent attention caches a latent and one rotary key of each token, as the paper of
  DeepSeek-V2 says, and attends in the space of latents: see "Latents" in
  [README.md](README.md). The cache of these models has 24 numbers for each token and
  layer, where all heads' keys and values have 144.
- BLOOM, Falcon, MPT, GPT-J, CodeGen, GPT-Neo, GPT-NeoX Japanese, XGLM, DiffLlama, Doge
  and JetMoE have attention code of their own; while they are compiled, kvc's function
  replaces it. So are the experts of DBRX, JetMoE, Llama 4 and LongCat, of which only
  chosen ones are then computed. Those of DBRX lie in one matrix; recipes store them as
  other experts, with a scale for each output channel of each.
- JetMoE's experts of attention make queries for the same keys, which are stored once.
- A value of Doge says how much more its key counts. That number is computed once and
  lies in the cache as the last one of the key; in an int8 cache it shares the key's
  scale. Its values also choose which keys count at all, in texts longer than
  `keep_window_size` (2048): such a length is refused.
- Llama 4's layers that see chunks of the text keep all positions, and attend with a
  mask [batch, 1, seq, capacity] that hides those before the chunk. A batch of rows of
  different lengths is refused: other layers scale queries by one position for all rows.
- Gemma 3n's last layers attend over caches of earlier ones, which are stored once.
- RoBERTa and its relatives also run as decoders, with `is_decoder=True`. Their first
  position is their padding token's number + 1, so a text has that many fewer positions;
  a padding token in a text counts as any other. Each architecture is compared with
  itself with and without what kvc passes to it: see "With and without" in
  [README.md](README.md).
- Falcon with ALiBi is compared with `sdpa`, since transformers' eager attention adds
  the slopes twice. transformers rounds slope times position to bfloat16, kvc does not:
  the two differ more and more from position 256 on, or if the number of heads is not 1,
  2, 4 or 8.
- Falcon's keys are stored once for each key head, not once for each query head.
- Rotary scaling `default`, `linear`, `llama3` and `yarn` run at any length.
  `dynamic` and `longrope` run up to the length at which their frequencies change
  (`CacheConfig(max_length=...)`), since the keys in a cache keep the old ones.
"""


QUALITY = """\
# What recipes cost

Written by `python tools/dev/hf_table.py` with transformers {version}; do not edit.

The models are those of [MODELS.md](MODELS.md): two layers of random weights, whose
heads look at few positions. Their figures compare one recipe with another, and one
architecture with another; they do not tell what a trained model loses.

The first table compares with the model in float32: the mean cosine of logits, and at
how many of {positions} positions of a text, in prefills and steps, the best token is
the same. Caches are float32, but in the last two columns; "none" is a model that has no
cache of keys and values. The command with `--new` measures architectures that have no
line yet.
"""
ROUNDED = """\
In the second table the model runs in its own attention and in float32, but rounds what
the recipe says: weights, the rows that linear layers multiply, keys and values as they
are cached (`tests/support/hf_rounded.py`). The first number is the largest difference
of logits from it, over the largest logit. It must be below {exact:g}, with float16
caches below {float16:g}. The texts are chosen such that no value lies near the middle
between two steps, where the order of a sum would decide; for float16 caches such texts
are too rare, and of qwen3_next by cpu_bf16 none was found: there short texts are
compared bit for bit (`equal_texts` in `tests/support/hf_quality.py`), most of which are
equal.

The second number is the control, the same difference when one row of one layer's cache
is one step off (a recurrent layer's states by 1/127 of their largest number): the
smallest of the layers'. Such a row hides in the first table.
"""
# Of each family one; variants and relatives lose what these lose.
FAMILIES = hf_models.NAMED | hf_models.RECURRENT | hf_models.LATENT


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page, with a line for each name.

    Attributes:
        title: the heading that it follows, which no other table has.
        head: its titles and the line under them.
        names: of models of `hf_models`.
        line: makes a model's line.
    """

    title: str
    head: str
    names: Iterable[str]
    line: Callable[[str], str]

    def fits(self, line: str) -> bool:
        """Tell whether a line has all columns, and a figure in each."""
        columns = self.head.splitlines()[-1].count(" | ")
        return line.count(" | ") == columns and "| - |" not in line


Lines = dict[tuple[str, str], str]  # by the title of a table and the name of a model


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--new", action="store_true", help="keep the lines they have")
    lines = _known() if parser.parse_args().new else Lines()
    transformers.logging.set_verbosity_error()
    for parts in PAGES.values():
        for table in parts:
            if isinstance(table, Table):
                for name in table.names:
                    _make(lines, table, name)
    _write(lines)


def _make(lines: Lines, table: Table, name: str) -> None:
    """Make a line, if there is none that fits, and write the pages with it."""
    before = lines.get((table.title, name))
    if before is None or not table.fits(before):
        lines[table.title, name] = table.line(name)
        print(lines[table.title, name], end="", file=sys.stderr, flush=True)
        _write(lines)


def _known() -> Lines:
    """Return the lines that the pages have."""
    lines, title = Lines(), ""
    for page in PAGES:
        for line in (FOLDER / page).read_text(encoding="utf-8").splitlines(True):
            title = line.strip() if line.startswith("## ") else title
            if line.startswith("| "):
                lines[title, line.split(" | ")[0].removeprefix("| ")] = line
    return lines


def _write(lines: Lines) -> None:
    """Write the pages, with the lines that there are."""
    for page, parts in PAGES.items():
        texts = [
            part if isinstance(part, str) else _laid_out(part, lines) for part in parts
        ]
        (FOLDER / page).write_text("\n".join(texts), encoding="utf-8")


def _laid_out(table: Table, lines: Lines) -> str:
    made = [lines.get((table.title, name), "") for name in table.names]
    return f"{table.title}\n\n{table.head}{''.join(made)}"


def _model_line(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        parity = hf_parity.compare(name, Path(folder))
        held, found = hf_quality.qualities(name, Path(folder), (INT8,))
    quality = found[INT8]
    assert quality is not None  # whose caches are float32
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
    figures = f"{found.prefill:.1e} | {found.decode:.1e} | {found.control:.3f}"
    return f"| {name} | {figures} | {found.left} |\n"


def _sized_line(name: str) -> str:
    model = sized_pictures.model(name)
    with tempfile.TemporaryDirectory() as folder:
        source = sized_pictures.write_folder(Path(folder) / "model", name)
        path = sized_pictures.write_bundle(source, Path(folder) / "model.kvc", 1)
        found = sized_pictures.compare(path, model)
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
    """Return how many operators each recipe leaves to PyTorch."""
    counts = []
    for recipe in ("cpu_fp32", "cpu_q8", "xnnpack_q8"):
        program = export_hf(encoder_models.build(name), recipe=recipe).program
        methods = describe_methods(program)
        counts.append(sum(sum(method.left.values()) for method in methods))
    return ", ".join(map(str, counts))


_qualities: dict[str, dict[hf_quality.Way, hf_quality.Quality | None]] = {}


def _quality_of(name: str) -> Iterator[hf_quality.Quality | None]:
    """Yield how each recipe compares; both tables of a page want to know."""
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


PAGES: dict[str, tuple[str | Table, ...]] = {
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
        QUALITY.format(
            version=transformers.__version__,
            positions=hf_parity.STEPS + len(hf_parity.CHUNKS),
        ),
        Table("## Beside the model in float32", WAYS, FAMILIES, _cost_line),
        ROUNDED.format(
            exact=hf_quality.EQUAL["int8"], float16=hf_quality.EQUAL["float16"]
        ),
        Table("## Beside the model that rounds as it", WAYS, FAMILIES, _rounded_line),
    ),
}


if __name__ == "__main__":
    main()
