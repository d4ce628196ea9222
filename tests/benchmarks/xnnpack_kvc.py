"""kvc's side of `xnnpack.py`, with the real XNNPACK: it fails where that is missing.

`build` compiles model A by a recipe, whole or one method alone. `run` measures as
`xnnpack_measure.py` says. `share` runs both methods of one bundle, or of one each, or
one of them, and counts memory after each.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

from xnnpack_measure import (
    Figures,
    Ids,
    add_run_options,
    clock,
    measure_process,
    memory,
    prompt,
    shape_of,
)

LENGTH = 128  # of the prompt, and of what is decoded before decoding is timed


class Kvc:
    """A program and one session of it."""

    def __init__(self, threads: int, reference: bool) -> None:
        from kvc.runtime import load

        self._load = partial(load, reference=reference, threads=threads)

    def load(self, path: str) -> None:
        """Load a bundle, and open a session."""
        self._program = self._load(path)
        self.session = self._program.session()
        self.methods = tuple(self._program.methods)

    def packed_nbytes(self) -> int:
        """Return what XNNPACK keeps of weights in a form of its own."""
        return self._program.residency().totals.packed

    def step(self, ids: Ids, position: int) -> None:
        """Append tokens at a position."""
        if position == 0:
            self.session.reset()
        self.session.call("decode" if ids.shape[1] == 1 else "prefill", ids)


def build(options: argparse.Namespace) -> None:
    """Compile, and print the bytes of the file."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from model_a import random_decoder

    from kvc.compiler import compile_program
    from kvc.compiler.models.decoder import DecoderConfig

    config = DecoderConfig(**shape_of(options.path), rope_base=100000.0)
    spec = random_decoder(config)
    methods = [m for m in spec.methods if m.name in options.methods.split(",")]
    bundle = compile_program(spec.model, methods, options.recipe, states=spec.states)
    bundle.save(options.path)


def share(options: argparse.Namespace) -> Figures:
    """Load bundles, run decode and then prefill as far as they have them; time both."""
    stacks = [Kvc(options.threads, options.reference) for _ in options.bundles]
    figures = memory("imported") | {"load_s": 0.0}
    for stack, path in zip(stacks, options.bundles, strict=True):
        figures["load_s"] += clock(partial(stack.load, path))
    figures |= memory("loaded")
    by_method = {name: stack for stack in stacks for name in stack.methods}
    for name, length in (("decode", 1), ("prefill", LENGTH)):
        if name in by_method:
            first = partial(by_method[name].step, prompt(length), 0)
            figures[f"{name}_first_s"] = clock(first)
            figures |= memory(name)
            figures[f"{name}_packed"] = sum(stack.packed_nbytes() for stack in stacks)
    if "prefill" in by_method:
        append = partial(by_method["prefill"].step, prompt(LENGTH), 0)
        times = [clock(append) for _ in range(options.repeats)]
        figures["prefill_s"] = statistics.median(times)
    if "decode" in by_method:
        times = []
        for place in range(LENGTH + options.steps):
            times.append(clock(partial(by_method["decode"].step, prompt(1), place)))
        figures["decode_s"] = statistics.median(times[LENGTH:])
    return figures


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    builder = stages.add_parser("build")
    builder.add_argument("path", help="of the bundle to write")
    builder.add_argument("--recipe", default="xnnpack_q8")
    builder.add_argument("--methods", default="prefill,decode")
    runner, sharer = stages.add_parser("run"), stages.add_parser("share")
    add_run_options(runner)
    sharer.add_argument("bundles", nargs="+")
    sharer.add_argument("--threads", type=int, default=2)
    sharer.add_argument("--repeats", type=int, default=5)
    sharer.add_argument("--steps", type=int, default=32)
    for stage in (runner, sharer):
        stage.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    match options.stage:
        case "build":
            build(options)
        case "run":
            measure_process(options, lambda n: Kvc(n, options.reference))
        case _:
            sys.stdout.write(json.dumps(share(options)) + "\n")


if __name__ == "__main__":
    main()
