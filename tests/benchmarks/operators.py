"""How much of torch's own samples of operators compiles, and is equal to eager.

`python tests/benchmarks/operators.py [NAMES] [--samples 1] [--part 0 --parts 1]`. Needs
`pip install expecttest`. The samples are `op_db`, which torch's own tests use: of each
operator, float32 and int64, each sample is a module that is compiled by `fp32`, saved,
loaded and run. Samples that eager refuses are left out, and so are complex and sparse
ones, those that have no tensor, and operators whose results have no values. Prints a
line for each operator that is not all equal, and what it all comes to: equal, refused
with a `KvcError`, other errors, wrong. `--executorch` tries those operators alone that
ExecuTorch's kernels run, and says how many of these have no sample that is refused.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from executorch_operators import names_in
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError

DTYPES = (torch.float32, torch.int64)


class Sample(nn.Module):
    """Calls an operator with the tensors that it is given, and what else it takes."""

    def __init__(self, op: Callable[..., object], sample: SampleInput) -> None:
        super().__init__()
        given = (sample.input, sample.args, sample.kwargs)
        leaves, self.spec = tree_flatten(given)
        self.tensors = tuple(
            each.detach().clone() for each in leaves if isinstance(each, Tensor)
        )
        self.others = [None if isinstance(each, Tensor) else (each,) for each in leaves]
        self.op = op

    op: Callable[..., object]
    spec: TreeSpec

    def forward(self, tensors: tuple[Tensor, ...]) -> object:
        """Call it."""
        left = iter(tensors)
        leaves = [next(left) if each is None else each[0] for each in self.others]
        x, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.op(x, *args, **kwargs)


def samples_of(op: OpInfo, most: int) -> Iterator[Sample]:
    """Yield the samples that can be tried, `most` of each dtype."""
    for dtype in DTYPES:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        samples = op.sample_inputs("cpu", dtype)  # type: ignore[no-untyped-call]
        for sample in list(samples)[:most]:
            made = Sample(op.op, sample)
            if made.tensors and all(map(_plain, made.tensors)):
                yield made


def _plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex()


def outcome(model: Sample, path: Path) -> tuple[str, str]:
    """Return what comes of a sample, and why; ("", "") where eager has no answer."""
    try:
        torch.manual_seed(0)
        given = tuple(each.clone() for each in model.tensors)
        expected = [x for x in tree_leaves(model(given)) if isinstance(x, Tensor)]
    except Exception:
        return "", ""
    if not expected or not all(map(_plain, expected)):
        return "", ""
    try:
        methods = [Method("forward", args=(model.tensors,))]
        compile_program(model.eval(), methods).save(path)
        with load(path) as program, program.session() as session:
            found = tree_leaves(session.call("forward", model.tensors))
    except KvcError as error:
        return "refused", " ".join(str(error).split("\n")[:2])
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    try:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(
                torch.as_tensor(one), other, rtol=1e-4, atol=1e-5, equal_nan=True
            )
    except (AssertionError, ValueError) as error:
        return "wrong", str(error)
    return "equal", ""


def _report_theirs(theirs: dict[str, tuple[str, ...]], refused: set[str]) -> None:
    """Print how many of ExecuTorch's operators are equal in all that was tried."""
    untried = sorted(name for name, samples in theirs.items() if not samples)
    good = [n for n, some in theirs.items() if some and not refused.intersection(some)]
    rest = sorted(theirs.keys() - {*good, *untried})
    share = len(good) / len(theirs)
    sys.stdout.write(f"of ExecuTorch's {len(theirs)}: {len(good)} equal, {share:.0%}\n")
    sys.stdout.write(f"not equal: {' '.join(rest)}\nno sample: {' '.join(untried)}\n")


def main() -> None:
    """Try the operators, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="of operators; all where none is given"
    )
    parser.add_argument("--samples", type=int, default=1, help="of each dtype")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--executorch", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    known = [op for op in op_db if "empty" not in op.name]  # these are any values
    theirs = names_in(frozenset(op.name for op in known)) if options.executorch else {}
    names = {*options.names, *(name for some in theirs.values() for name in some)}
    wanted = [op for op in known if not names or op.name in names]
    refused: set[str] = set()
    total, whole = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for op in wanted[options.part :: options.parts]:
            found, why = Counter[str](), ""
            for sample in samples_of(op, options.samples):
                kind, reason = outcome(sample, Path(folder) / "sample.kvc")
                found[kind] += 1
                why = reason or why
            del found[""]
            total += found
            worst = [k for k in ("wrong", "error", "refused", "equal") if found[k]]
            whole.update(worst[:1])
            if worst and worst[0] != "equal":
                refused.add(op.name)
                name = op.name + (op.variant_test_name and f".{op.variant_test_name}")
                sys.stdout.write(f"{name}: {dict(found)} {why[:200]}\n")
                sys.stdout.flush()
    if theirs:
        _report_theirs(theirs, refused)
    for title, counts in (("samples", total), ("operators, by their worst", whole)):
        words = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        sys.stdout.write(f"{title}: {words}\n")


if __name__ == "__main__":
    main()
