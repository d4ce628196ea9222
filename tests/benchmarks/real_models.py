"""What recipes lose on a trained model, SmolLM2-135M: divergence, perplexity, bytes.

`python tests/benchmarks/real_models.py [--recipes NAME...] [--tokens N] [--text FILE]`
compiles the model (`tests/support/real_models.py` fetches it) by cpu_fp32 and by each
recipe, and compares what they expect of each token of two texts: the topics of pydoc,
and Debian's `fortunes` or a file; in windows of 1,024, whose first half is context.
Prints a table; `kvc eval --against` gives the same figures for any bundle and text.
"""

import argparse
import pydoc_data.topics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from real_models import smollm2

from kvc.runtime import Program, load
from kvc.runtime.scoring import Score, score_tokens
from kvc.runtime.tokenizers import tokenizer_of
from kvc.tools.cli import main as kvc

FORTUNES = Path("/usr/share/games/fortunes")
KINDS = ("literature", "law", "science", "wisdom", "people", "politics")
RECIPES = ("cpu_bf16", "cpu_q8", "xnnpack_q8", "cpu_q4")
WINDOW = 1024


def texts(file: Path | None) -> dict[str, str]:
    """Return two texts that are nobody's secret."""
    topics = pydoc_data.topics.topics
    docs = "\n\n".join(topics[name] for name in sorted(topics))
    if file is not None:
        return {"docs": docs, file.stem: file.read_text(errors="replace")}
    if not FORTUNES.exists():
        sys.exit("there is no second text: `apt install fortunes`, or --text FILE")
    said = [(FORTUNES / kind).read_text(errors="replace") for kind in KINDS]
    return {"docs": docs, "fortunes": "".join(said).replace("\n%\n", "\n\n")}


def compiled(recipe: str, folder: Path) -> tuple[Path, float]:
    """Return a bundle of the model, and the seconds that it took."""
    path = folder / f"{recipe}.kvc"
    given = ["compile", str(smollm2()), "--recipe", recipe, "--all-logits", "-q"]
    began = time.perf_counter()
    kvc([*given, "-o", str(path)], standalone_mode=False)
    return path, time.perf_counter() - began


def scores(
    program: Program, exact: Program, tokens: dict[str, list[int]]
) -> dict[str, Score]:
    """Return what each text costs, beside float32."""
    return {
        name: score_tokens(program, some, WINDOW, against=exact)
        for name, some in tokens.items()
    }


def line(recipe: str, path: Path, seconds: float, found: dict[str, Score]) -> str:
    """Return a row of the table."""
    cells = [recipe, f"{path.stat().st_size / 1e6:.1f} MB", f"{seconds:.0f} s"]
    for score in found.values():
        apart = score.divergence
        assert apart is not None
        cells += [
            f"{apart.nats:.4f} ± {apart.error:.4f}",
            f"{apart.same:.1%}",
            f"{score.perplexity:.3f}",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--text", type=Path)
    options = parser.parse_args()
    out = sys.stdout
    with tempfile.TemporaryDirectory() as folder:
        path, seconds = compiled("cpu_fp32", Path(folder))
        with load(path) as exact:
            tokenizer = tokenizer_of(exact)
            tokens = {
                name: list(tokenizer.encode(text, special=False))[: options.tokens]
                for name, text in texts(options.text).items()
            }
            heads = [f"{name}: KL | same | perplexity" for name in tokens]
            out.write(f"| recipe | file | compile | {' | '.join(heads)} |\n")
            out.write(f"|{' --- |' * (3 + 3 * len(heads))}\n")
            for recipe in ["cpu_fp32", *options.recipes]:
                if recipe != "cpu_fp32":
                    path, seconds = compiled(recipe, Path(folder))
                with load(path) as program:
                    found = scores(program, exact, tokens)
                out.write(line(recipe, path, seconds, found) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
