"""Every module class of torch.nn, in two configurations or more, against eager.

`python tests/benchmarks/modules.py [NAMES]` compiles each case of
`tests/support/torch_modules.py` by `fp32`, saves it, loads it, runs it and compares.
With `--recipe cpu_fp32` also tells which operators a recipe leaves to PyTorch, and with
`--without-torch` all others run in a process that cannot import torch.
With `--samples` also torch's own, `module_db` (needs `pip install expecttest`). Prints
a line for each that is not equal, and what it all comes to. The exit code tells whether
none was wrong or failed otherwise than in a `KvcError`.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from module_outcomes import outcome
from torch_modules import CASES
from without_torch import WithoutTorch

Given = tuple[str, nn.Module, tuple[object, ...], dict[str, object]]


def own() -> Iterator[Given]:
    """Yield the cases of the table."""
    for case in CASES:
        module, inputs = case.make()
        yield str(case), module, inputs, {}


def samples() -> Iterator[Given]:
    """Yield torch's own."""
    from torch.testing._internal.common_modules import module_db

    for one in module_db:
        made = one.module_inputs_func(one, "cpu", torch.float32, False, training=False)
        for sample in made:
            if sample.forward_input is None:
                continue
            built, given = sample.constructor_input, sample.forward_input
            module = one.module_cls(*built.args, **built.kwargs).eval()
            name = f"{one.name} {sample.desc or built.args}"
            yield name, module, tuple(given.args), dict(given.kwargs)


def main() -> None:
    """Try them, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of classes; all where none is given")
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--recipe", default="fp32", help="[default: fp32]")
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = Counter[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = stack.enter_context(WithoutTorch()) if options.without_torch else None
        for name, module, args, kwargs in samples() if options.samples else own():
            if options.names and type(module).__name__ not in options.names:
                continue
            path = folder / "module.kvc"
            result = outcome(module, args, kwargs, path, options.recipe, process)
            found[result.kind] += 1
            if result.kind != "equal":
                print(f"{result.kind} {name}: {result.reason[:300]}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in found.most_common()))
    sys.exit(1 if found["wrong"] or found["error"] else 0)


if __name__ == "__main__":
    main()
