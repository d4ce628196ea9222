"""`kvc dump`: describe a bundle, a saved session, or a file of ExecuTorch.

It reads the header and program of a bundle, never a blob, and the header and index of
data files, to attribute the bytes of each file. A missing data file is not an error:
the report names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from kvc.schema.errors import UnknownName
from kvc.schema.text import escape, size
from kvc.tools.options import data_folders_option, nbytes_of, sizes_of
from kvc.tools.printing import report_text, show

if TYPE_CHECKING:
    from kvc.schema.model import Method, Program
    from kvc.tools.executorch import Described
    from kvc.tools.executorch.contents import PteMethod
    from kvc.tools.reports.bundle import DumpReport
    from kvc.tools.reports.instructions import ListingReport

M = TypeVar("M", "Method", "PteMethod")


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--size", is_flag=True, help="Where every byte of the file goes.")
@click.option("--memory", is_flag=True, help="Planned memory of each method.")
@click.option(
    "--states", is_flag=True, help="Every state, and which methods read and write it."
)
@click.option(
    "--copies",
    is_flag=True,
    help="Every write to a state: in place, or a copy, and why.",
)
@click.option(
    "--blobs",
    is_flag=True,
    help="Every blob, with its names and the methods that use it.",
)
@click.option(
    "--delegates",
    is_flag=True,
    help="Every partition that a backend runs; which operators, and why no others.",
)
@click.option(
    "--ops",
    metavar="METHOD",
    multiple=True,
    help="The instructions of METHOD. Repeatable.",
)
@click.option(
    "--full",
    is_flag=True,
    help="With --copies, --delegates, --ops, --size or --states, a line for each layer "
    "or module.",
)
@click.option(
    "--at",
    metavar="NAME=N,...",
    help="What memory it takes at these sizes, and with tokens=N held in each row; "
    "others as planned.",
)
@click.option(
    "--max-ram",
    metavar="N",
    help="The largest capacity that fits into N bytes, as 512M or 2G, at --at.",
)
@click.option(
    "--what-if",
    is_flag=True,
    help="What smaller weights and caches would save, at --at. For settings of your "
    "choice: kvc compile BUNDLE --what-if.",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    help="Write one page that shows all of it, for a browser, without a network.",
)
@data_folders_option
@click.option(
    "--backend",
    metavar="BACKEND",
    help="Of a bundle for several recipes, the backend of the one to describe.  "
    "[default: the first]",
)
def dump(
    bundle: str,
    as_json: bool,
    ops: Sequence[str],
    full: bool,
    at: str | None,
    max_ram: str | None,
    what_if: bool,
    page: str | None,
    data_folders: Sequence[str],
    backend: str | None,
    **sections: bool,
) -> None:
    """Describe BUNDLE: methods, states, weights, memory, size.

    Without options, prints an overview; each option prints one table in full instead.
    --html writes a page with pictures of the memory plan and of the file.

    BUNDLE may also be a saved session: then its program, position and capacity are
    printed. For a .pte or .ptd file of ExecuTorch, the same tables as for a bundle are
    printed. For a file of kvc export, the memory and time that its partitions take on
    the target are printed.

    Example: kvc dump model.kvc --at capacity=8192,seq=128,tokens=512,threads=2
    """
    from kvc.schema.container import BundleFile
    from kvc.tools.executorch import describe_executorch
    from kvc.tools.reports.bundle import body_of, describe_file
    from kvc.tools.reports.instructions import describe_listing

    places = sizes_of(at)
    most = None if max_ram is None else nbytes_of(max_ram, "--max-ram")
    footprint = at is not None or most is not None or what_if
    tables = ops or any(sections.values())
    plain = not (tables or footprint or page is not None or backend is not None)
    if _is_printed(bundle, plain, as_json):
        return
    asked = [name for name, wanted in sections.items() if wanted]
    foreign = describe_executorch(bundle)
    if foreign is not None:
        if footprint or page is not None or backend is not None:
            raise click.UsageError(
                "--at, --max-ram, --what-if, --html and --backend are of bundles alone"
            )
        _print_executorch(foreign, asked, ops, as_json)
        return
    if page is not None:
        if tables or footprint or as_json:
            raise click.UsageError("--html has everything; leave other options out")
        _write_page(bundle, page, data_folders, backend)
        return
    if footprint:
        if tables:
            raise click.UsageError(
                "--at, --max-ram and --what-if print no other table beside"
            )
        with BundleFile.open(bundle) as file:
            body = body_of(file.program, backend)
        _print_footprint(bundle, body, places, most, what_if, as_json)
        return
    with BundleFile.open(bundle) as file:
        by_method = as_json or sections["size"]
        report = describe_file(file, data_folders, by_method, backend)
        body = body_of(file.program, backend)
        listings = [describe_listing(body, one) for one in _named(body.methods, ops)]
    if as_json:
        code = [asdict(one) for one in listings]
        click.echo(report_text("dump", _chosen(asdict(report), asked, code)))
    else:
        show(_lines(report, asked, listings, full))


def _is_printed(path: str, plain: bool, as_json: bool) -> bool:
    """Describe a saved session or a file of kvc export; return False for other files.

    Args:
        path: path of the file.
        plain: whether the user asked for no table.
        as_json: whether to print JSON.
    """
    from kvc.schema.container import is_session
    from kvc.tools.reports.files import (
        describe_exported,
        describe_session,
        exported_lines,
        session_lines,
    )

    exported = None if is_session(path) else describe_exported(path)
    if exported is None and not is_session(path):
        return False
    if not plain:
        kind = "a saved session" if exported is None else "a file of kvc export"
        raise click.UsageError(f"{escape(path)} is {kind}, which has no such tables")
    if exported is None:
        session = describe_session(path)
        fields, lines = {"session": asdict(session)}, session_lines(session)
    else:
        fields, lines = {"exported": asdict(exported)}, exported_lines(path, exported)
    if as_json:
        click.echo(report_text("dump", fields))
    else:
        show(lines)
    return True


def _print_executorch(
    foreign: "Described", asked: Sequence[str], ops: Sequence[str], as_json: bool
) -> None:
    from kvc.tools.executorch.lines import code_lines, pte_lines, table_of

    report, methods = foreign
    chosen = _named(methods, ops)
    if as_json:
        code = [{"method": m.name, "code": code_lines(m)[1:]} for m in chosen]
        click.echo(report_text("dump", _chosen(asdict(report), asked, code)))
        return
    tables = [table_of(name)(report) for name in asked]
    tables += [code_lines(method) for method in chosen]
    show([line for table in tables for line in ("", *table)][1:] or pte_lines(report))


def _write_page(
    bundle: str, name: str, data_folders: Sequence[str], backend: str | None
) -> None:
    from kvc.schema.container import BundleFile
    from kvc.tools.outputs import check_own_output
    from kvc.tools.page.content import describe_page, page_start, write_page
    from kvc.tools.reports.bundle import body_of, describe_file

    path = check_own_output(name, page_start())
    with BundleFile.open(bundle) as file:
        report = describe_file(file, data_folders, by_method=True, backend=backend)
        content = describe_page(report, body_of(file.program, backend))
    write_page(path, content)


def _print_footprint(
    bundle: str,
    program: "Program",
    sizes: dict[str, int],
    most: int | None,
    what_if: bool,
    as_json: bool,
) -> None:
    from kvc.tools.reports.footprint import (
        describe_footprint,
        footprint_lines,
        largest_footprint,
    )
    from kvc.tools.reports.savings import describe_savings, saving_lines

    found = (
        describe_footprint(program, sizes)
        if most is None
        else largest_footprint(program, sizes, most)
    )
    if isinstance(found, int):
        reason = f"does not fit into {size(most or 0)}: at its least capacity it takes"
        raise click.ClickException(f"{escape(bundle)} {reason} {size(found)}")
    savings = describe_savings(program, found.sizes, found.tokens) if what_if else ()
    if as_json:
        fields = asdict(found) | {"total": found.total}
        shown: dict[str, object] = {"footprint": fields}
        if what_if:
            shown["savings"] = [asdict(one) for one in savings]
        click.echo(report_text("dump", shown))
        return
    lines = footprint_lines(found)
    if what_if:
        lines += ["", "OTHER SETTINGS of kvc compile", *saving_lines(savings)]
    show(lines)


def _named(methods: Sequence[M], names: Sequence[str]) -> list[M]:
    """Return the methods with the given names.

    Raises:
        UnknownName: no method has one of the names.
    """
    known = {method.name: method for method in methods}
    for name in names:
        if name not in known:
            raise UnknownName(kind="method", name=name, known=tuple(known))
    return [known[name] for name in names]


def _chosen(
    everything: dict[str, object],
    asked: Sequence[str],
    listings: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    if not asked and not listings:
        return everything
    keys = {"copies": ("updates",), "delegates": ("delegates", "operators")}
    wanted = [key for name in asked for key in keys.get(name, (name,))]
    found = {key: everything[key] for key in wanted if key in everything}
    return found | ({"ops": listings} if listings else {})


def _lines(
    report: "DumpReport",
    asked: Sequence[str],
    listings: Sequence["ListingReport"],
    full: bool,
) -> list[str]:
    """Return the overview, or the requested tables with blank lines between them."""
    from kvc.tools.reports.overview import overview_lines, position_line
    from kvc.tools.reports.tables import (
        blob_lines,
        blob_size_lines,
        copy_lines,
        delegate_lines,
        listing_lines,
        memory_lines,
        operator_lines,
        size_lines,
        state_lines,
    )

    if not asked and not listings:
        return overview_lines(report)
    table = {
        "size": lambda: [
            *size_lines(report.size),
            *("", *blob_size_lines(report.blobs, full)),
        ],
        "memory": lambda: memory_lines(report.memory),
        "states": lambda: [
            *state_lines(report.states, full),
            position_line(report.position),
        ],
        "copies": lambda: copy_lines(report.updates, full),
        "blobs": lambda: blob_lines(report.blobs),
        "delegates": lambda: [
            *delegate_lines(report.delegates, full),
            *("", *operator_lines(report.operators)),
        ],
    }
    tables = [table[name]() for name in asked]
    tables += [listing_lines(one, full) for one in listings]
    return [line for table in tables for line in ("", *table)][1:]
