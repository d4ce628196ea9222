"""`kvc verify`: check every byte of a bundle."""

import json
import time

import click


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(bundle: str, as_json: bool) -> None:
    """Check every byte of BUNDLE: structure, meaning, memory plan, all digests.

    Exits with 0 when the bundle is whole, otherwise with 1 and a message that says
    where it is wrong.
    """
    from kvc.schema.container import BundleFile, verify_bundle
    from kvc.tools.text import escape, plural, size

    start = time.perf_counter()
    verify_bundle(bundle)
    with BundleFile.open(bundle) as file:
        program, nbytes, digest = file.program, file.size, file.digest
    seconds = time.perf_counter() - start
    if as_json:
        facts = {"path": bundle, "ok": True, "nbytes": nbytes, "digest": digest}
        click.echo(json.dumps(facts, indent=2))
        return
    parts = (
        plural(len(program.methods), "method"),
        plural(len(program.states), "state"),
        plural(len(program.blobs), "blob"),
        size(nbytes),
    )
    click.echo(f"{escape(bundle)}: whole ({', '.join(parts)}; {seconds:.2f} s)")
