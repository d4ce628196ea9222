"""What differs between two bundles: `kvc diff`.

In: the reports on both, as `kvc dump` has them, and the listings of their methods. Out:
a report of the differences alone. Weights are compared by what they were in the model:
a weight that one bundle stores as float32 and the other as int8 with scales is one
weight of another type.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import unified_diff
from typing import Final

from kvc.schema.text import families
from kvc.schema.uses import FILE
from kvc.tools.reports.blobs import BlobReport
from kvc.tools.reports.bundle import DumpReport
from kvc.tools.reports.instructions import ListingReport
from kvc.tools.reports.tables import listing_lines

_OF: Final = " of "  # between a pass and the weight that it was given, in a provenance
_TOLD_APART: Final = {"name", "left"}  # "left" is what PyTorch runs of the operators
# What stands before a line, the numbers of values, and offsets in the scratch arena.
_NUMBERED: Final = re.compile(r"^ *\d+ (?= )|(?<=%)\d+| at \d+| in %\d+")


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs between the two bundles; "" on the side that lacks it.

    Attributes:
        what: name of the field.
        old, new: value of the field in the first and in the second bundle.
    """

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Item:
    """A method, state or weight that differs between the two bundles.

    Attributes:
        name: name of the method, state or weight.
        kind: "only in the first", "only in the second" or "changed"; of weights also
            "another type", "renamed" (the same bytes under another name) and
            "moved" (the same bytes in another file).
        changes: the fields that differ.
        old_nbytes, new_nbytes: bytes of the state or weight in the first and in the
            second bundle, 0 if a bundle lacks it.
    """

    name: str
    kind: str
    changes: tuple[Change, ...] = ()
    old_nbytes: int = 0
    new_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """An operator whose number of calls differs in some methods.

    Attributes:
        op: name of the operator.
        backend: backend that runs the operator, "" for PyTorch.
        methods: methods that have the same two numbers of calls.
        old, new: number of calls in each of these methods, in the first and in the
            second bundle.
    """

    op: str
    backend: str
    methods: tuple[str, ...]
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class DifferenceReport:
    """All differences; every part is empty if two bundles have the same content.

    Attributes:
        equal: whether the two bundles have the same digest, which covers all content.
        file: differences in recipe, versions, digests, size.
        methods: methods that differ in signature, role, or what they call and write.
        operators: numbers of calls that differ in methods of both bundles.
        code: method -> unified diff of the two listings without the numbers of values;
            empty if only the numbers differ.
        states: states of a session that differ.
        weights: weights that differ, by their names in the model, and stored files.
        same_weights, same_nbytes: number and bytes of the weights that are the same in
            both bundles under the same names.
        memory: differences in planned scratch, states and the backends' workspaces.
        size: differences in the parts of the files.
        metadata: entries that differ, by key.
    """

    equal: bool
    file: tuple[Change, ...]
    methods: tuple[Item, ...]
    operators: tuple[OperatorChange, ...]
    code: Mapping[str, tuple[str, ...]]
    states: tuple[Item, ...]
    weights: tuple[Item, ...]
    same_weights: int
    same_nbytes: int
    memory: tuple[Change, ...]
    size: tuple[Change, ...]
    metadata: tuple[Change, ...]


def describe_differences(
    old: DumpReport,
    new: DumpReport,
    old_code: Sequence[ListingReport],
    new_code: Sequence[ListingReport],
) -> DifferenceReport:
    """Compare two bundles.

    Args:
        old: report on the first bundle.
        new: report on the second bundle.
        old_code: listings of all methods of the first bundle.
        new_code: listings of all methods of the second bundle.
    """
    weights, same = _weights(old.blobs, new.blobs)
    return DifferenceReport(
        equal=old.file.digest == new.file.digest,
        file=_changes(_file(old), _file(new)),
        methods=_items(
            {m.name: _flat(m) for m in old.methods},
            {m.name: _flat(m) for m in new.methods},
        ),
        operators=_operators(old, new),
        code=_code(old_code, new_code),
        states=_states(old, new),
        weights=weights,
        same_weights=len(same),
        same_nbytes=sum(same),
        memory=_changes(_memory(old), _memory(new)),
        size=_changes(_parts(old), _parts(new)),
        metadata=_changes(old.metadata, new.metadata),
    )


def _changes(
    old: Mapping[str, object], new: Mapping[str, object]
) -> tuple[Change, ...]:
    return tuple(
        Change(key, str(old.get(key, "")), str(new.get(key, "")))
        for key in dict.fromkeys((*old, *new))
        if old.get(key, "") != new.get(key, "")
    )


def _file(report: DumpReport) -> dict[str, object]:
    """Return the fields of a bundle's file, and of its recipes if it has several."""
    said = {key: value for key, value in asdict(report.file).items() if key != "path"}
    if len(report.recipes) > 1:
        for one in report.recipes:
            told = f"{one.partitions} partitions, {one.left} instructions for PyTorch"
            said[f"recipe for {one.backend}"] = f"{one.recipe}, {told}"
    return said


def _flat(report: object) -> dict[str, object]:
    """Return the fields of a report as text by name.

    Names that differ only in numbers are written as one pattern.
    """
    found: dict[str, object] = {}
    for field in fields(report):  # type: ignore[arg-type]  # reports are dataclasses
        value = getattr(report, field.name)
        if field.name not in _TOLD_APART:
            found[field.name.replace("_", " ")] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} x {count}" for key, count in value.items())
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(one, str) for one in value):
        return ", ".join(pattern for pattern, _ in families(value, str, lambda _: None))
    return ", ".join(" ".join(map(str, asdict(one).values())) for one in value)


def _items(
    old: Mapping[str, Mapping[str, object]], new: Mapping[str, Mapping[str, object]]
) -> tuple[Item, ...]:
    found = []
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            found.append(Item(name, "only in the first"))
        elif name not in old:
            found.append(Item(name, "only in the second"))
        elif changes := _changes(old[name], new[name]):
            found.append(Item(name, "changed", changes))
    return tuple(found)


def _operators(old: DumpReport, new: DumpReport) -> tuple[OperatorChange, ...]:
    before, after = _counts(old), _counts(new)
    both = {m.name for m in old.methods} & {m.name for m in new.methods}
    alike: dict[tuple[str, str, int, int], list[str]] = {}
    for key in dict.fromkeys((*before, *after)):
        op, backend, method = key
        counts = before.get(key, 0), after.get(key, 0)
        if method in both and counts[0] != counts[1]:
            alike.setdefault((op, backend, *counts), []).append(method)
    return tuple(
        OperatorChange(op, backend, tuple(methods), first, second)
        for (op, backend, first, second), methods in alike.items()
    )


def _counts(report: DumpReport) -> dict[tuple[str, str, str], int]:
    """Return how many instructions have an operator, by op, backend and method."""
    counts: dict[tuple[str, str, str], int] = {}
    for one in report.operators:
        key = (one.op, one.backend, one.method)
        counts[key] = counts.get(key, 0) + one.count
    return counts


def _code(
    old: Sequence[ListingReport], new: Sequence[ListingReport]
) -> dict[str, tuple[str, ...]]:
    """Map each method of both bundles whose code differs to the diff of its listings.

    The numbers of values and offsets in memory shift with every added instruction, so
    they are left out. If nothing else differs, the result says so.
    """
    before = {listing.method: listing_lines(listing, full=True) for listing in old}
    after = {listing.method: listing_lines(listing, full=True) for listing in new}
    found: dict[str, tuple[str, ...]] = {}
    for name, lines in before.items():
        others = after.get(name, lines)
        plain, other = (
            [_NUMBERED.sub("", line).strip() for line in text]
            for text in (lines, others)
        )
        if plain != other:
            found[name] = tuple(unified_diff(plain, other, lineterm="", n=1))[2:]
        elif lines != others:
            found[name] = ()
    return found


def _states(old: DumpReport, new: DumpReport) -> tuple[Item, ...]:
    before = {state.name: state for state in old.states}
    after = {state.name: state for state in new.states}
    items = _items(
        {name: _flat(state) for name, state in before.items()},
        {name: _flat(state) for name, state in after.items()},
    )
    return tuple(
        Item(
            item.name,
            item.kind,
            item.changes,
            before[item.name].nbytes if item.name in before else 0,
            after[item.name].nbytes if item.name in after else 0,
        )
        for item in items
    )


@dataclass(frozen=True, slots=True)
class _Weight:
    """All stored parts of one weight of the model.

    Attributes:
        types: types of the parts, by the names that passes give them: "" is the weight
            itself.
        digests: digests of the parts, in the order of `types`.
        files: files that hold the parts.
    """

    types: tuple[tuple[str, str], ...]
    digests: tuple[str, ...]
    files: tuple[str, ...]
    nbytes: int


def _weights(
    old: Sequence[BlobReport], new: Sequence[BlobReport]
) -> tuple[tuple[Item, ...], list[int]]:
    """Return the weights that differ, and the bytes of each weight that is equal."""
    before, after = _by_source(old), _by_source(new)
    old_names = _renamed(before, after)
    kept = set(old_names.values())
    items, same = [], []
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name), after.get(name)
        if first is None and second is not None:
            was = old_names.get(name)
            if was is None:
                items.append(Item(name, "only in the second", (), 0, second.nbytes))
            else:
                nbytes, renamed = second.nbytes, (Change("name", was, name),)
                items.append(Item(name, "renamed", renamed, nbytes, nbytes))
        elif first is not None and second is None:
            if name not in kept:
                items.append(Item(name, "only in the first", (), first.nbytes, 0))
        elif first is not None and second is not None:
            if change := _compare(first, second):
                items.append(Item(name, *change, first.nbytes, second.nbytes))
            else:
                same.append(first.nbytes)
    return tuple(items), same


def _renamed(
    before: Mapping[str, _Weight], after: Mapping[str, _Weight]
) -> dict[str, str]:
    """Map new names to old names of weights with the same bytes, each name once."""
    gone: dict[tuple[str, ...], list[str]] = {}
    for name in reversed([name for name in before if name not in after]):
        gone.setdefault(before[name].digests, []).append(name)
    return {
        name: gone[one.digests].pop()
        for name, one in after.items()
        if name not in before and gone.get(one.digests)
    }


def _compare(first: _Weight, second: _Weight) -> tuple[str, tuple[Change, ...]] | None:
    if first.types != second.types:
        return "another type", (Change("type", _stored(first), _stored(second)),)
    if first.digests != second.digests:
        digests = zip(first.digests, second.digests, strict=True)
        old, new = next((a, b) for a, b in digests if a != b)
        return "changed", (Change("digest", old[:12], new[:12]),)
    if first.files != second.files:
        files = (", ".join(one.files) for one in (first, second))
        return "moved", (Change("file", *files),)
    return None


def _stored(weight: _Weight) -> str:
    return " + ".join(kind for _, kind in weight.types)


def _by_source(blobs: Sequence[BlobReport]) -> dict[str, _Weight]:
    """Map each weight's name in the model to its stored parts; files by their names."""
    parts: dict[str, list[tuple[str, str, BlobReport]]] = {}
    for blob in blobs:
        for name in blob.names:
            source = name.provenance.partition(_OF)[2] or name.name
            kind = name.type if name.format != FILE else FILE
            parts.setdefault(source, []).append((name.name, kind, blob))
    return {
        source: _Weight(
            types=tuple((name.removeprefix(source), kind) for name, kind, _ in found),
            digests=tuple(blob.digest for _, _, blob in found),
            files=tuple(dict.fromkeys(blob.file or "the bundle" for *_, blob in found)),
            nbytes=sum({blob.digest: blob.nbytes for *_, blob in found}.values()),
        )
        for source, unsorted in parts.items()
        for found in [sorted(unsorted, key=lambda part: part[:2])]
    }


def _memory(report: DumpReport) -> dict[str, object]:
    memory = report.memory
    found: dict[str, object] = {
        f"scratch of {method.method}": method.planned for method in memory.methods
    }
    found |= {"states of a session": memory.states, "of backends": memory.workspace}
    return found | {
        f"size {name}": f"{lower} to {upper}"
        for name, (lower, upper) in memory.symbols.items()
    }


def _parts(report: DumpReport) -> dict[str, object]:
    found: dict[str, object] = {}
    files = [("", report.size.parts)]
    files += [(f"{one.name}: ", one.parts) for one in report.size.data_files]
    for file, parts in files:
        for part in parts:
            found[f"{file}{part.category} {part.what}".rstrip()] = part.nbytes
    return found
