"""Write compiler/hugging_face/MODELS.md: each architecture against transformers' own.

`python tools/dev/hf_table.py` builds the tiny random models of `tests/support`,
compiles each, and compares logits; about twelve minutes. With `--new` the lines that
the page has stay as they are, and only those that it lacks are made. Not shipped.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import transformers

from kvc.compiler import CacheConfig, export_hf
from kvc.schema.errors import CompileError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "compiler" / "hugging_face" / "MODELS.md"
sys.path.insert(0, os.fspath(ROOT / "tests" / "support"))

import hf_models  # noqa: E402  they lie beside the tests
import hf_parity  # noqa: E402
import seq2seq_models  # noqa: E402

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

"""
COLUMNS = """\
| architecture | prefill | decode | best | control | noticed |
| --- | --- | --- | --- | --- | --- |
"""
WITH_ENCODER = """\
## Encoder and decoder

The decoder's logits after encodings of {heard} tokens, or three of features, chunks of
{chunks}, and {steps} steps (`tests/support/seq2seq_models.py`). *own* is the control
with a wrong row of the decoder's own caches, *cross* that with one of the cross caches;
both must be above {noticed:g}.

| architecture | prefill | decode | best | own | cross | noticed |
| --- | --- | --- | --- | --- | --- | --- |
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
  are copied. A prompt is computed in chunks of 64 tokens (Mamba: token by token). Such
  a state is rewound by the snapshots that a session was asked for,
  `session(snapshots=n)`.
- Latent attention caches a latent and one rotary key of each token, as the paper of
  DeepSeek-V2 says, and attends in the space of latents: see "Latents" in
  [README.md](README.md). The cache of these models has 24 numbers for each token and
  layer, where all heads' keys and values have 144.
- BLOOM, Falcon, MPT, GPT-J, CodeGen, GPT-Neo, GPT-NeoX Japanese, XGLM and DiffLlama
  have attention code of their own; while they are compiled, kvc's function replaces it.
  So are the experts of DBRX and Llama 4, of which only chosen ones are then computed.
  Those of DBRX lie in one matrix, of which each is a part: recipes leave them float32.
- Llama 4's layers that see chunks of the text keep all positions, and attend with a
  mask [batch, 1, seq, capacity] that hides those before the chunk. A batch of rows of
  different lengths is refused: other layers scale queries by one position for all rows.
- Gemma 3n's last layers attend over caches of earlier ones, which are stored once.
- RoBERTa and its relatives run as decoders, with `is_decoder=True`. Their first
  position is their padding token's number + 1, so a text has that many fewer positions;
  a padding token in a text counts as any other. Each architecture is compared with
  itself with and without what kvc passes to it: see "With and without" in
  [README.md](README.md).
- Falcon with ALiBi is compared with `sdpa`, since transformers' eager attention adds
  the slopes twice. transformers rounds slope times position to bfloat16, kvc does not:
  the two differ more and more from position 256 on, or if the number of heads is not 1,
  2, 4 or 8.
- Falcon's keys are stored once for each key head, not once for each query head.
- A model with an encoder runs one row at a time. The positions of T5's decoder are a
  bias over the whole capacity of a session, which each step computes: a session with a
  smaller capacity is quicker.
- Rotary scaling `default`, `linear`, `llama3` and `yarn` run at any length.
  `dynamic` and `longrope` run up to the length at which their frequencies change
  (`CacheConfig(max_length=...)`), since the keys in a cache keep the old ones.
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--new", action="store_true", help="keep the lines it has")
    known = _lines() if parser.parse_args().new else {}
    transformers.logging.set_verbosity_error()
    parts = [
        HEAD.format(
            version=transformers.__version__,
            lengths=", ".join(map(str, hf_parity.LENGTHS)),
            chunks=", ".join(map(str, hf_parity.CHUNKS)),
            steps=hf_parity.STEPS,
            window=hf_models.WINDOW,
            noticed=hf_parity.NOTICED,
        ),
        *_table("## Main architectures", hf_models.NAMED, known),
        *_table("## Variants of these", hf_models.VARIANTS, known),
        *_table("## Other architectures", hf_models.OTHERS, known),
        *_table("## Recurrent and hybrid architectures", hf_models.RECURRENT, known),
        *_table("## Latent attention", hf_models.LATENT, known),
        *_with_encoder(known),
        REMARKS,
        *_refused(known),
    ]
    PAGE.write_text("".join(parts), encoding="utf-8")


def _lines() -> dict[tuple[str, bool], str]:
    """Return the page's lines, by name and whether it is refused."""
    lines, refused = {}, False
    for line in PAGE.read_text(encoding="utf-8").splitlines(keepends=True):
        refused = refused or line.startswith("## Refused")
        if line.startswith("| "):
            lines[line.split(" | ")[0].removeprefix("| "), refused] = line
    return lines


def _table(
    title: str, names: Iterable[str], known: Mapping[tuple[str, bool], str]
) -> Iterator[str]:
    yield f"{title}\n\n{COLUMNS}"
    for name in names:
        if (name, False) in known:
            yield known[name, False]
            continue
        with tempfile.TemporaryDirectory() as folder:
            yield _line(name, hf_parity.compare(name, Path(folder)))
    yield "\n"


def _line(name: str, parity: hf_parity.Parity) -> str:
    print(name, parity, file=sys.stderr, flush=True)
    noticed = "yes" if parity.control > hf_parity.NOTICED else "no"
    return (
        f"| {name} | {parity.prefill:.1e} | {parity.decode:.1e} | "
        f"{parity.agreement:.0%} | {parity.control:.3f} | {noticed} |\n"
    )


def _with_encoder(known: Mapping[tuple[str, bool], str]) -> Iterator[str]:
    yield WITH_ENCODER.format(
        heard=", ".join(map(str, seq2seq_models.HEARD)),
        chunks=", ".join(map(str, seq2seq_models.CHUNKS)),
        steps=seq2seq_models.STEPS,
        noticed=seq2seq_models.NOTICED,
    )
    for name in seq2seq_models.SEQ2SEQ:
        if (name, False) in known:
            yield known[name, False]
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = seq2seq_models.compare(name, Path(folder))
        print(name, found, file=sys.stderr, flush=True)
        noticed = min(found.own, found.cross) > seq2seq_models.NOTICED
        yield (
            f"| {name} | {found.prefill:.1e} | {found.decode:.1e} | "
            f"{found.agreement:.0%} | {found.own:.3f} | {found.cross:.3f} | "
            f"{'yes' if noticed else 'no'} |\n"
        )
    yield "\n"


def _refused(known: Mapping[tuple[str, bool], str]) -> Iterator[str]:
    yield "\n## Refused\n\n| architecture | what the error says |\n| --- | --- |\n"
    for name in hf_models.REFUSED:
        if (name, True) in known:
            yield known[name, True]
            continue
        try:
            export_hf(
                hf_models.build(name), cache=CacheConfig(max_length=hf_parity.CAPACITY)
            )
        except CompileError as error:
            yield f"| {name} | {' '.join(str(error).split())} |\n"
        else:
            raise SystemExit(f"{name} is not refused any more")


if __name__ == "__main__":
    main()
