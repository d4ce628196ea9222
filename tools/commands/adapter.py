"""`kvc adapter`: make a file for a bundle's slots of an adapter in PEFT's format."""

from pathlib import Path

import click

from kvc.schema.text import escape, plural, size


@click.command("adapter")
@click.argument("folder", metavar="FOLDER")
@click.option(
    "--base",
    required=True,
    metavar="BUNDLE",
    help="The bundle that the adapter is for, compiled with --adapters.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The folder of the model that the adapter was trained on; DoRA and trained "
    "biases need its weights.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE.kva",
    help="The adapter's file.  [default: FOLDER.kva]",
)
def make_adapter(folder: str, base: str, model: str | None, output: str | None) -> None:
    """Make FILE.kva of the LoRA or DoRA adapter in FOLDER.

    FOLDER has adapter_config.json and adapter_model.safetensors, as PEFT writes them.
    The file is for BUNDLE, and for bundles of the same program. Any number of adapters
    can be made; BUNDLE holds as many at a time as it was compiled for.

    Example: kvc adapter ./poet --base model.kvc
    """
    from kvc.compiler.adapters.peft import read_peft
    from kvc.runtime.adapters.adapter_file import check_fit, write_adapter
    from kvc.runtime.adapters.quantized import stored_layers
    from kvc.schema.adapters import B
    from kvc.schema.container import BundleFile
    from kvc.schema.identity import identity

    path = Path(f"{Path(folder).name}.kva" if output is None else output)
    with BundleFile.open(base) as bundle:
        program = bundle.program
        layers = read_peft(folder, program, model)
        of = identity(program)
        stored = stored_layers(layers, program)
        check_fit(folder, stored, program)
    write_adapter(path, of, stored)
    ranks = sorted({len(parts[B]) for parts in stored.values()})
    said = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    layers_said = plural(len(stored), "layer")
    nbytes = size(path.stat().st_size)
    click.echo(f"{escape(str(path))}: {layers_said}, {said}, {nbytes}", err=True)
