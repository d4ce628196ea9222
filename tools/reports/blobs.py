"""What is shared: every blob, its names, and which methods use it."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.schema.families import families
from kvc.schema.model import Program
from kvc.schema.text import columns, escape, plural, share, size
from kvc.schema.uses import FILE, PLAIN, methods_of_blobs
from kvc.tools.reports.uses import users_of_names


@dataclass(frozen=True, slots=True)
class NameReport:
    """A name of a blob and who uses the blob under it."""

    name: str
    type: str
    format: str
    provenance: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlobReport:
    """A run of bytes; `file` is "" for the bundle itself.

    Attributes:
        methods: the methods that use it, by any name, themselves or by a delegate.
    """

    nbytes: int
    file: str
    offset: int
    align: int
    digest: str
    methods: tuple[str, ...]
    names: tuple[NameReport, ...]


@dataclass(frozen=True, slots=True)
class SharingReport:
    """Blobs of one format that the same methods use, taken together.

    Attributes:
        format: "plain", "file" for files that go along, or the name of a packing of
            some of the plain ones.
    """

    methods: tuple[str, ...]
    format: str
    blobs: int
    nbytes: int


def describe_blobs(program: Program) -> tuple[BlobReport, ...]:
    """Return a report on each blob, in the order of the file."""
    users, methods = users_of_names(program), methods_of_blobs(program)
    names: list[list[NameReport]] = [[] for _ in program.blobs]
    for index, n in enumerate(program.names):
        names[n.blob].append(
            NameReport(n.name, str(n.type), n.format, n.provenance, users[index])
        )
    return tuple(
        BlobReport(
            nbytes=blob.nbytes,
            file=program.files[blob.file].name,
            offset=blob.offset,
            align=blob.align,
            digest=blob.digest.hex(),
            methods=methods[index],
            names=tuple(names[index]),
        )
        for index, blob in enumerate(program.blobs)
    )


def describe_sharing(program: Program) -> tuple[SharingReport, ...]:
    """Group the blobs by the methods that use them, most bytes first, packed last."""
    formats = {named.blob: named.format for named in reversed(program.names)}
    groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for index, methods in methods_of_blobs(program).items():
        group = groups.setdefault((methods, formats[index]), [])
        group.append(program.blobs[index].nbytes)
    reports = [SharingReport(*key, len(g), sum(g)) for key, g in groups.items()]
    return tuple(
        sorted(reports, key=lambda r: (r.format != PLAIN, -r.nbytes, r.methods))
    )


def blob_lines(blobs: Sequence[BlobReport]) -> list[str]:
    """Lay out a line for each name; a blob's other names follow its first."""
    title = ("bytes", "offset", "digest", "type", "name", "used by")
    rows = [title]
    for blob in blobs:
        place = (f"{blob.nbytes:,}", _place(blob), blob.digest[:12])
        for index, name in enumerate(blob.names):
            head = place if index == 0 else ("", "", "  same blob")
            rows.append((*head, name.type, _name(name), _users(name)))
    return columns(rows, ">>")


def _place(blob: BlobReport) -> str:
    return f"{escape(blob.file)}:{blob.offset:,}" if blob.file else f"{blob.offset:,}"


def _name(name: NameReport) -> str:
    return escape(name.name) + _packed(name.format)


def _packed(form: str) -> str:
    return "" if form == PLAIN else f" ({escape(form)})"


def _users(name: NameReport) -> str:
    return ", ".join(map(escape, name.users)) or "nobody"


def sharing_lines(sharing: Sequence[SharingReport]) -> list[str]:
    """Say what is shared, and how much bigger the file would be if nothing were."""
    rows = [
        (
            _what(group),
            size(group.nbytes),
            plural(group.blobs, "blob"),
        )
        for group in sharing
    ]
    lines = columns(rows, "<>>")
    plain = [group for group in sharing if group.format == PLAIN]
    once = sum(group.nbytes for group in plain)
    apart = sum(group.nbytes * max(1, len(group.methods)) for group in plain)
    if apart > once:
        lines.append(
            f"  {size(once)} stored once; {size(apart)} if methods kept their own"
        )
    return lines


def _what(group: SharingReport) -> str:
    if group.format == FILE and not group.methods:
        return "files that go along"
    return _who(group.methods) + _packed(group.format)


def _who(methods: Sequence[str]) -> str:
    if not methods:
        return "initial values of states"
    names = " + ".join(map(escape, methods))
    return f"{names}, shared" if len(methods) > 1 else f"{names} only"


def blob_size_lines(blobs: Sequence[BlobReport], full: bool) -> list[str]:
    """Lay out what the blobs of each module take, in exact bytes, the most first.

    Args:
        blobs: of a bundle and its data files.
        full: whether equal ones of each layer stand on a line of their own.
    """
    groups = [(_name_of(blob), [blob]) for blob in blobs]
    if not full:
        groups = families(blobs, name=_name_of, like=_kind_of)
    groups.sort(key=lambda one: -_sum(one[1]))
    whole = _sum(blobs)
    rows = [
        (
            f"{_sum(group):,}",
            share(_sum(group), whole),
            f"{len(group):,}",
            _kind_of(group[0]),
            escape(name),
        )
        for name, group in groups
    ]
    total = (f"{whole:,}", "100.0%", f"{len(blobs):,}", "", "all blobs")
    title = ("bytes", "share", "blobs", "type", "name in the model")
    return columns([title, *rows, total], ">>>") if rows else []


def _sum(blobs: Sequence[BlobReport]) -> int:
    return sum(blob.nbytes for blob in blobs)


def _name_of(blob: BlobReport) -> str:
    return blob.names[0].name


def _kind_of(blob: BlobReport) -> str:
    first = blob.names[0]
    if first.format != PLAIN:
        return first.format
    return first.type.partition("[")[0]
