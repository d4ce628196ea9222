"""`kvc devices`: list the devices that bundles can run on here."""

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import columns, escape
from kvc.tools.printing import report_text


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def devices(as_json: bool) -> None:
    """List the devices of this machine, beside its processor.

    `--device NAME` of the commands that run a bundle chooses one of them. Without that
    option, a backend takes the fastest kind of device. It takes a program that emulates
    a device only if there is no real one, and then warns.

    Example: kvc devices
    """
    from kvc.runtime.delegates.table import find_devices

    rows, facts = [], []
    for backend, found in find_devices():
        if isinstance(found, KvcError):
            rows.append((backend, f"none: {found}"))
            facts.append((backend, "", "", str(found)))
            continue
        for each in found:
            reason = f"; cannot be used: {each.missing}" if each.missing else ""
            rows.append((each.name, escape(each.what) + reason))
            facts.append((backend, each.name, each.what, each.missing))
    if as_json:
        keys = ("backend", "device", "what", "missing")
        told = [dict(zip(keys, fact, strict=True)) for fact in facts]
        click.echo(report_text("devices", {"devices": told}))
    else:
        click.echo("\n".join(columns(rows, indent=0)) or "none beside the processor")
