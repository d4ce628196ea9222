"""What recipes lose on trained models, beside llama.cpp.

`python tests/benchmarks/real_models.py [MODEL...] [--recipes NAME...]
[--llama PYTHON] [--kinds KIND...] [--tokens N] [--text FILE] [--page]` fetches models
that packages ship (`tests/support/real_models.py`), compiles each by cpu_fp32 and by
each recipe (`cpu_q4+samples+105M` is with samples, in 105 MB), and compares what they
make of the same texts or sounds. `--llama` names
the interpreter of an environment with llama.cpp (`real_models_llama.py`), whose own
quantizer then gets the same float32 weights. Prints tables; `--page` writes them into
`compiler/hugging_face/QUALITY.md`, where lines that were not measured stay.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import real_models_embeddings as embeddings
import real_models_sounds as sounds
import real_models_texts as texts
from demo_checkpoint import save_demo
from real_models import gemma3, gemma3_gguf, minilm, smollm2, smollm2_gguf, whisper
from real_models_compile import text_samples

from kvc.tools.dev.page_sections import Section, with_section
from kvc.tools.dev.train_demo import SEQ

PAGE = Path(__file__).parents[2] / "compiler" / "hugging_face" / "QUALITY.md"
MARK = "<!-- by tests/benchmarks/real_models.py -->\n"
RECIPES = (
    *("cpu_bf16", "cpu_q8", "xnnpack_q8", "cpu_q4", "cpu_q4+samples"),
    *("xnnpack_q4", "xnnpack_q4+samples"),
)
# What is measured where nothing else is asked: recipes, and tokens of a text.
USUAL = {
    "smollm2": ((*RECIPES, "cpu_q4+samples+105M"), 10_000),
    "gemma3": (("cpu_q8", "xnnpack_q8", "cpu_q4", "cpu_q4+samples"), 2_048),
    "demo": ((*RECIPES, "cpu_q4+samples+2700K"), 20_000),
    "whisper": ((*RECIPES, "cpu_q4+samples+38M"), None),
    "minilm": ((*RECIPES, "cpu_q4+samples+20M"), None),
}
KINDS = ("Q8_0", "Q4_0", "Q4_K_M")
ORDER = (
    "cpu_fp32",
    "cpu_bf16",
    "cpu_q8",
    "llama.cpp Q8_0",
    "xnnpack_q8",
    "cpu_q4",
    "cpu_q4+samples",
    "cpu_q4+samples+20M",
    "cpu_q4+samples+38M",
    "llama.cpp Q4_0",
    "cpu_q4+samples+105M",
    "cpu_q4+samples+2700K",
    "llama.cpp Q4_K_M",
    "xnnpack_q4",
    "xnnpack_q4+samples",
)


def text_section(title: str, about: str, rows: Iterable[texts.Row]) -> Section:
    """Return the table of a language model."""
    lines, head = {}, list[str]()
    for row in rows:
        lines[row.name] = [_megabytes(row.nbytes), _megabytes(row.weights_nbytes)]
        for loss in row.losses.values():
            apart = loss.divergence
            lines[row.name] += [
                f"{apart.nats:.5f} ± {apart.error:.5f}",
                f"{apart.same:.1%}",
                f"{loss.perplexity:.3f}",
            ]
        head = ["recipe", "file", "weights"]
        for name in row.losses:
            head += [f"{name}: KL", "same", "perplexity"]
    return Section(title, about, head, lines, ORDER)


def sound_section(title: str, about: str, rows: Iterable[sounds.Row]) -> Section:
    """Return the table of a model of speech."""
    lines = {}
    for row in rows:
        changed, wrong = f"{row.changed} of {row.total}", f"{row.wrong}"
        lines[row.name] = [_megabytes(row.nbytes), changed, wrong]
    head = ["recipe", "file", "words unlike float32's", "unlike what was said"]
    return Section(title, about, head, lines, ORDER)


def embedding_section(
    title: str, about: str, rows: Iterable[embeddings.Row]
) -> Section:
    """Return the table of a model of embeddings."""
    lines = {
        row.name: [_megabytes(row.nbytes), f"{row.least:.4f}", f"{row.mean:.4f}"]
        for row in rows
    }
    head = ["recipe", "file", "least cosine", "mean"]
    return Section(title, about, head, lines, ORDER)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


SMOLLM2_TEXT = """\
Its package ships it with 4 bits a weight (Q4_1): 4-bit figures are those of a second
rounding, and tell more of how recipes compare than of what they would lose of the
original. {count:,} tokens of each text.
"""
GEMMA3_TEXT = """\
No recipe was tuned on it. Its package ships a table of 8 bits (Q8_0), of which Q8_0
loses nothing, and layers of 4 to 8 bits as Q4_K_M chooses them: that line finds the
shipped numbers again, and all other lines of 4 bits are a second rounding. {count:,}
tokens of each text.
"""
DEMO_TEXT = """\
A small Llama whose tokens are bytes, 3.8 million weights, which were trained in float32
and rounded to bfloat16, so that these are figures of a first rounding. {count:,} bytes
of modules of Python's library that it was not trained on, and of the package click, in
windows of 512.
"""
WHISPER_TEXT = """\
Ten sentences, spoken by three voices of espeak-ng. Its package ships float16.
"""
MINILM_TEXT = """\
Embeddings of 16 paragraphs of each of the two texts. Its package ships float32.
"""


def language(
    title: str,
    about: str,
    source: Path,
    shipped: Path,
    given: Mapping[str, str],
    options: argparse.Namespace,
    window: int = 1024,
) -> Section:
    """Measure a language model."""
    peer = options.llama and texts.Peer(options.llama, options.kinds)
    asked = texts.Asked(options.recipes, peer, given, options.tokens, window)
    rows = texts.measure(source, shipped, asked)
    return text_section(title, about.format(count=options.tokens), rows)


def _smollm2(options: argparse.Namespace) -> Section:
    title = "### SmolLM2-135M-Instruct"
    given = texts.texts(options.text)
    return language(title, SMOLLM2_TEXT, smollm2(), smollm2_gguf(), given, options)


def _gemma3(options: argparse.Namespace) -> Section:
    title = "### Gemma 3 270M"
    given = texts.texts(options.text)
    return language(title, GEMMA3_TEXT, gemma3(), gemma3_gguf(), given, options)


def _demo(options: argparse.Namespace) -> Section:
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        save_demo(source)
        given = texts.sources()
        title = "### The demo model"
        return language(title, DEMO_TEXT, source, source, given, options, SEQ)


def _whisper(options: argparse.Namespace) -> Section:
    with tempfile.TemporaryDirectory() as folder:
        rows = sounds.measure(whisper(), options.recipes, Path(folder))
        return sound_section("### Whisper tiny.en", WHISPER_TEXT, rows)


def _minilm(options: argparse.Namespace) -> Section:
    given = embeddings.paragraphs(texts.texts(options.text))
    with tempfile.TemporaryDirectory() as folder:
        samples = text_samples(texts.texts(options.text))
        source, recipes = minilm(), options.recipes
        rows = embeddings.measure(source, recipes, given, samples, Path(folder))
        return embedding_section("### all-MiniLM-L6-v2", MINILM_TEXT, rows)


MODELS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "smollm2": _smollm2,
    "gemma3": _gemma3,
    "demo": _demo,
    "whisper": _whisper,
    "minilm": _minilm,
}


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS))
    parser.add_argument("--recipes", nargs="*")
    parser.add_argument("--llama", type=Path, metavar="PYTHON")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.models) - MODELS.keys():
        parser.error(f"no such model: {unknown}; there are {', '.join(MODELS)}")
    for name in options.models:
        recipes, tokens = USUAL[name]
        asked = vars(options) | {
            "recipes": recipes if options.recipes is None else options.recipes,
            "tokens": options.tokens or tokens,
        }
        section = MODELS[name](argparse.Namespace(**asked))
        sys.stdout.write(f"{section.laid_out()}\n\n")
        sys.stdout.flush()
        if options.page:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(with_section(page, MARK, section), encoding="utf-8")


if __name__ == "__main__":
    main()
