"""Check that the variants of a program look the same to callers.

A variant is the methods of a program, compiled by an additional recipe. In: a program
whose variants are unchecked. Out: nothing, or the first difference. `semantics.py`
checks the code of variants as it checks the code for the first recipe. Variants use the
states, cursors, symbols and data of the program, and have none of their own.
"""

from dataclasses import replace

from kvc.schema.frozen import frozen
from kvc.schema.graph import Caller
from kvc.schema.model import Advance, Method, Program
from kvc.schema.types import TensorType
from kvc.schema.verify import limits
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.limits import Reporter


@frozen
class VisibleSignature:
    """The part of a method that callers and sessions can observe.

    Attributes:
        name, role, input_names, input_tree, output_tree: as in `Method`.
        inputs: the types of the inputs, and whether each lies in the caller's array.
        outputs: the types of the outputs.
        reads, writes: ids of the states that the method reads and writes.
        advances: how far a call advances cursors.
        adapts: as in `Method`.
    """

    name: str
    role: str
    input_names: tuple[str, ...]
    input_tree: str
    output_tree: str
    inputs: tuple[tuple[TensorType, bool], ...]
    outputs: tuple[TensorType, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    advances: tuple[Advance, ...]
    adapts: int | None


def signature_of(method: Method) -> VisibleSignature:
    """Return the part of a method that callers and sessions can observe."""
    values = method.graph.values
    inputs = [values[number] for number in method.graph.inputs]
    return VisibleSignature(
        name=method.name,
        role=method.role,
        input_names=method.input_names,
        input_tree=method.input_tree,
        output_tree=method.output_tree,
        inputs=tuple((v.type, isinstance(v.storage, Caller)) for v in inputs),
        outputs=tuple(values[number].type for number in method.graph.outputs),
        reads=method.reads,
        writes=method.writes,
        advances=method.advances,
        adapts=method.adapts,
    )


def check_adapted(program: Program, report: Reporter) -> None:
    """Check that bodies for adapters have the signatures of the methods they are for.

    They may read more states, those that say which adapter a row has. A method has at
    most one such body.
    """
    taken = [method.adapts for method in program.methods if method.adapts is not None]
    report.require(len(taken) == len(set(taken)), "methods", f"they adapt {taken}")
    for number, method in enumerate(program.methods):
        if method.adapts is None:
            continue
        where, earlier = f"method {method.name!r}", method.adapts < number
        report.require(earlier, where, f"it adapts method {method.adapts}")
        base = program.methods[method.adapts]
        report.require(base.adapts is None, where, f"it adapts {base.name!r}")
        wanted, found = signature_of(base), signature_of(method)
        reads = set(base.reads) <= set(method.reads)
        same = replace(found, name=base.name, reads=base.reads, adapts=None) == wanted
        what = f"it differs from {base.name!r} for callers"
        report.require(reads and same, where, what)


def check_variants(program: Program, report: Reporter) -> None:
    """Check that the methods of all recipes have the same signatures.

    A caller selects a recipe by the recipe's first backend, so two recipes must not
    have the same first backend.
    """
    variants = program.variants
    report.limit("the number of variants", len(variants), limits.MAX_VARIANTS)
    own = [signature_of(method) for method in program.methods]
    bounds = [replace(symbol, sizes=()) for symbol in program.symbols]
    for variant in variants:
        where = f"variant {variant.recipe!r}"
        report.name(variant.recipe, where)
        same = [replace(symbol, sizes=()) for symbol in variant.symbols] == bounds
        report.require(same, where, "its symbols are not the program's")
        CheckedTypes(
            variant.symbols, Reporter(report.path, f"{where}, ")
        ).check_symbols(variant.symbols)
        for wanted, method in zip(own, variant.methods, strict=False):
            what = f"method {method.name!r} differs from {wanted.name!r} for callers"
            report.require(signature_of(method) == wanted, where, what)
        count, wanted_count = len(variant.methods), len(own)
        what = f"{count} methods, the program has {wanted_count}"
        report.require(count == wanted_count, where, what)
    first = [body.backends[:1] for body in program.bodies]
    what = f"their first backends are {first}: each needs one of its own"
    fits = all(first) and len(set(first)) == len(first)
    report.require(fits or not variants, "variants", what)
