"""What `kvc dump --at` foretells, beside what a process takes (BENCHMARKS.md).

    python tests/benchmarks/foretold_memory.py a.kvc [b.kvc ...]

Bundles of language models with the methods `prefill` and `decode` and a capacity of
2,048 tokens or more. Prompts are random tokens of the whole vocabulary.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from whole_process import foretold, resident_whole

from kvc.schema.container import BundleFile

PROMPTS = (2, 32, 400)
THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    print("| bundle | prompt | foretold | taken | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for path in parser.parse_args().bundles:
        with BundleFile.open(path) as file:
            (decode,) = (m for m in file.program.methods if m.name == "decode")
            logits = decode.graph.values[decode.graph.outputs[0]]
        vocab = logits.type.dims[-1]
        for seq in PROMPTS:
            told = foretold(path, seq, THREADS).total
            taken = resident_whole(path, seq, THREADS, vocab)
            cells = f"{told / 1e6:.1f} MB | {taken / 1e6:.1f} MB | {told / taken:.3f}"
            print(f"| {path.stem} | {seq} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
