"""What recipes and llama.cpp lose on a trained language model.

In: a folder of transformers, and the gguf that it was made from, if there is one. Out:
a row for each recipe and each kind of llama.cpp, all beside the same model by
`cpu_fp32`, on the same tokens of two texts: how far the distributions of the next token
are from its own.
"""

import math
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from real_models_compile import compiled, text_samples
from real_models_llama_scorer import LlamaScorer, run_stage

from kvc.runtime import Program, Session, load
from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring import Divergence, cut_windows
from kvc.runtime.scoring.divergence import Beside
from kvc.runtime.scoring.scorers import Logits, Scorer, find_scorer
from kvc.runtime.tokenizers import tokenizer_of
from kvc.tools.dev.train_demo import read_library

FORTUNES = Path("/usr/share/games/fortunes")
FORTUNE_KINDS = ("literature", "law", "science", "wisdom", "people", "politics")
ROWS = 64  # whose probabilities are in memory at once
# How far logits of llama.cpp by float32 may be from kvc's; it looks up GELU in a table
# of float16, which moves those of Gemma 3 by 0.03. Another model is off by far more.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens of texts, by their names, and those that each window begins with."""

    tokens: Mapping[str, Sequence[int]]
    start: Sequence[int]


@dataclass(frozen=True, slots=True)
class Loss:
    """What a model loses on a text."""

    divergence: Divergence
    perplexity: float


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a recipe, or of a kind of llama.cpp.

    Attributes:
        nbytes, weights_nbytes: of the file, and of the weights in it.
        losses: by text.
    """

    name: str
    nbytes: int
    weights_nbytes: int
    losses: Mapping[str, Loss]


def texts(file: Path | None) -> dict[str, str]:
    """Return two texts that are nobody's secret."""
    topics = pydoc_data.topics.topics
    docs = "\n\n".join(topics[name] for name in sorted(topics))
    if file is not None:
        return {"pydoc": docs, file.stem: file.read_text(errors="replace")}
    if not FORTUNES.exists():
        sys.exit("there is no second text: `apt install fortunes`, or --text FILE")
    said = [(FORTUNES / kind).read_text(errors="replace") for kind in FORTUNE_KINDS]
    return {"pydoc": docs, "fortunes": "".join(said).replace("\n%\n", "\n\n")}


def sources() -> dict[str, str]:
    """Return two texts in Python: modules that no one trained on, and a package's."""
    _, library = read_library()
    package = Path(click.__file__).parent.rglob("*.py")
    return {
        "library": library.decode(errors="replace"),
        "click": "".join(path.read_text() for path in sorted(package)),
    }


class Comparison:
    """A model by cpu_fp32, that others are compared with.

    Attributes:
        sample: what they are compared on.
        exact: runs the model.
        window: tokens that it sees at once.
    """

    def __init__(self, program: Program, session: Session, asked: "Asked") -> None:
        tokenizer = tokenizer_of(program)
        given = {
            name: list(tokenizer.encode(text, special=False))[: asked.count]
            for name, text in asked.texts.items()
        }
        self.sample = Sample(given, list(tokenizer.encode("", special=True)))
        self.exact = Remembering(find_scorer(program, session))
        self.window = asked.window

    def losses(self, scorers: Sequence[Scorer]) -> list[dict[str, Loss]]:
        """Return what each model loses on each text; they take turns, by windows."""
        found: list[dict[str, Loss]] = [{} for _ in scorers]
        start, cut = self.sample.start, (self.window, self.window // 2)
        for name, tokens in self.sample.tokens.items():
            tallies = [Tally(scorer, self.exact) for scorer in scorers]
            for part in cut_windows(len(tokens), *cut, bool(start)):
                seen = [*start, *tokens[part.begin : part.end]]
                for tally in tallies:
                    tally.add(seen, len(start) + part.first - part.begin)
                sys.stderr.write(f"{name}: {part.end} of {len(tokens)}\n")
            for losses, tally in zip(found, tallies, strict=True):
                losses[name] = tally.loss()
        return found

    def distance(self, scorer: Scorer) -> float:
        """Return the largest difference of logits in half a window of each text."""
        start, far = self.sample.start, 0.0
        for tokens in self.sample.tokens.values():
            seen = [*start, *tokens[: self.window // 2]]
            made = [list(each.logits(seen, 1)) for each in (scorer, self.exact)]
            found, wanted = map(np.concatenate, made)
            far = max(far, float(np.abs(found - wanted).max()))
        return far


class Remembering:
    """A scorer that runs a window once, for all that ask for it in a row."""

    def __init__(self, scorer: Scorer) -> None:
        self.method, self.most = scorer.method, scorer.most
        self._scorer = scorer
        self._window: tuple[tuple[int, ...], int] | None = None
        self._rows: list[Logits] = []

    def logits(self, tokens: Sequence[int], first: int) -> Iterator[Logits]:
        """Yield some rows at a time; see `Scorer`."""
        if self._window != (tuple(tokens), first):
            self._rows = list(self._scorer.logits(tokens, first))
            self._window = tuple(tokens), first
        yield from self._rows


class Tally:
    """What a model has lost on a text so far."""

    def __init__(self, scorer: Scorer, exact: Scorer) -> None:
        self._scorer, self._beside = scorer, Beside(exact)
        self._nats, self._counted = 0.0, 0

    def add(self, seen: Sequence[int], first: int) -> None:
        """Add a window, whose tokens from `first` on count."""
        self._beside.begin(seen, first)
        at = first
        for rows in self._scorer.logits(seen, first):
            for some in np.split(rows, range(ROWS, len(rows), ROWS)):
                expected = log_probabilities(some)
                self._beside.add(expected)
                chosen = seen[at : at + len(some)]
                self._nats -= float(expected[np.arange(len(some)), chosen].sum())
                at += len(some)
        self._counted += len(seen) - first

    def loss(self) -> Loss:
        """Return the means."""
        perplexity = math.exp(self._nats / self._counted)
        return Loss(self._beside.divergence(), perplexity)


@dataclass(frozen=True, slots=True)
class Scored:
    """A model that is ready to be scored, with what a row says of its file."""

    name: str
    nbytes: int
    weights_nbytes: int
    scorer: Scorer


def by_recipe(path: Path, opened: ExitStack) -> Scored:
    """Return a model by a recipe, whose bundle has its name."""
    program = opened.enter_context(load(path))
    scorer = find_scorer(program, opened.enter_context(program.session()))
    return _scored(path.stem, path, program, scorer)


def _scored(name: str, path: Path, program: Program, scorer: Scorer) -> Scored:
    stored = (blob.nbytes for blob in program.residency().blobs if blob.methods)
    return Scored(name, path.stat().st_size, sum(stored), scorer)


def by_llama(path: Path, python: Path, length: int, opened: ExitStack) -> Scored:
    """Return a gguf by llama.cpp."""
    scorer = opened.enter_context(LlamaScorer(python, path, length))
    name = f"llama.cpp {path.stem}"
    return Scored(name, scorer.nbytes, scorer.weights_nbytes, scorer)


def quantized(
    shipped: Path, python: Path, kinds: Sequence[str], folder: Path
) -> Iterator[Path]:
    """Yield ggufs by llama.cpp's own quantizer, before them all one of float32."""
    exact = folder / "F32.gguf"
    run_stage(python, "float32", shipped, exact)
    yield exact
    for kind in kinds:
        path = folder / f"{kind}.gguf"
        if path != exact:
            run_stage(python, "quantize", exact, kind, path)
        yield path


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp, in the environment of an interpreter, and its kinds of weights."""

    python: Path
    kinds: Sequence[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured: recipes, a peer, texts, and tokens of each of them.

    Attributes:
        window: tokens that a model sees at once, of which half count.
    """

    recipes: Sequence[str]
    peer: Peer | None
    texts: Mapping[str, str]
    count: int
    window: int


def measure(source: Path, shipped: Path, asked: Asked) -> list[Row]:
    """Return a row for each recipe and each kind of llama.cpp, the first one exact.

    Args:
        source: a folder of transformers.
        shipped: the gguf that it was made from, or the folder again.
        asked: what is to be measured.
    """
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        samples = text_samples(asked.texts)
        compile_line = partial(
            compiled, source, folder=folder, samples=samples, all_logits=True
        )
        path = compile_line("cpu_fp32")
        program = opened.enter_context(load(path))
        session = opened.enter_context(program.session())
        comparison = Comparison(program, session, asked)
        models = [_scored("cpu_fp32", path, program, comparison.exact)]
        models += [by_recipe(compile_line(each), opened) for each in asked.recipes]
        if asked.peer is not None:
            models += _of_peer(shipped, asked.peer, comparison, folder, opened)
        losses = comparison.losses([model.scorer for model in models])
        pairs = zip(models, losses, strict=True)
        return [Row(m.name, m.nbytes, m.weights_nbytes, lost) for m, lost in pairs]


def _of_peer(
    shipped: Path, peer: Peer, comparison: Comparison, folder: Path, opened: ExitStack
) -> list[Scored]:
    """Return the models of llama.cpp, which is checked to compute the same model."""
    length = comparison.window + len(comparison.sample.start)
    exact, *paths = quantized(shipped, peer.python, peer.kinds, folder)
    with LlamaScorer(peer.python, exact, length) as scorer:
        far = comparison.distance(scorer)
    if far > NEAR:
        sys.exit(f"llama.cpp by float32 differs by {far}: it is another model")
    sys.stderr.write(f"llama.cpp by float32: logits differ by {far:.1e}\n")
    return [by_llama(path, peer.python, length, opened) for path in paths]
