"""`kvc serve`: OpenAI's API over HTTP, for the models in bundles.

One line for each model and the address go to stdout; the log goes to stderr.
"""

import asyncio
import logging
import os
import sys
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import MissingPackage
from kvc.schema.text import escape, plural, size
from kvc.tools.options import Loading, load_bundle, program_options
from kvc.tools.serving_options import Served, Serving, bundles_of, serving_options

if TYPE_CHECKING:
    from kvc.serving.models.catalog import Served as Model
    from kvc.serving.models.text_model import TextModel
    from kvc.serving.scheduling import Limits


@click.command()
@click.argument("bundles", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="[MODEL:]NAME=FILE[,scale=S]",
    help="Also serve MODEL with this adapter, as MODEL:NAME. Repeatable.",
)
@serving_options
@click.option(
    "--log-level",
    type=click.Choice(["error", "warning", "info", "debug"]),
    default="info",
    show_default=True,
    help="What goes to stderr; info is a line for each request.",
)
@program_options
def serve(
    bundles: tuple[str, ...],
    adapters: tuple[str, ...],
    serving: Serving,
    log_level: str,
    loading: Loading,
) -> None:
    """Serve the models in BUNDLEs over HTTP, as OpenAI's API.

    Requests name a model by NAME, or by the name of its file without ".kvc". Many
    requests are answered at once. SIGINT or SIGTERM ends the server once its answers
    have ended, or after --drain.

    Example: kvc serve chat=model.kvc embed=bert.kvc
    """
    _check_installed()
    # One text at a time gains nothing from threads, of which subprocesses would warn.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from kvc.serving.http.server import Server, listening
    from kvc.serving.http.service import Service
    from kvc.serving.models.catalog import Catalog

    told = bundles_of(bundles, adapters)
    _log(log_level)
    with ExitStack() as stack:
        listener = stack.enter_context(listening(serving.host, serving.port))
        models = [_open(one, serving.limits, loading, stack) for one in told]
        service = Service(Catalog(models), serving.http, serving.access)
        server = Server(service, serving.drain)
        for model in models:
            click.echo(_line(model, serving.limits))
        address = _address(serving.host, listener.getsockname()[1])

        def started() -> None:
            click.echo(f"http://{address}")
            sys.stdout.flush()

        asyncio.run(server.run_on(listener, started))
        if service.is_busy:  # with what cannot be interrupted, and nobody waits for
            sys.stdout.flush()
            os._exit(0)


def _check_installed() -> None:
    """Check that the packages of kvc[serve] are there.

    Raises:
        MissingPackage: one is not.
    """
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            what="kvc serve",
            package=error.name or "starlette",
            reason=str(error),
            install="pip install 'kvc[serve]'",
        ) from error


def _open(
    served: Served, limits: "Limits", loading: Loading, stack: ExitStack
) -> "Model":
    """Load a bundle and its adapters.

    Raises:
        KvcError: as `load`, `Adapters.load` and `open_model`.
    """
    from kvc.serving.models.opening import open_model
    from kvc.serving.models.text_model import TextModel

    program = stack.enter_context(load_bundle(served.path, loading))
    for name, file, _ in served.adapters:
        program.adapters.load(file, name)
    program.pack()  # or the first request would wait for it
    scales = {name: scale for name, _, scale in served.adapters}
    model = open_model(served.name, program, limits, scales)
    stack.callback(model.close)
    if isinstance(model, TextModel):
        model.warm_up()
    return model


def _log(level: str) -> None:
    """Log to stderr; the warnings of settings are not told, as clients wrote them."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    warnings.filterwarnings("ignore", module=r"kvc\.")


def _line(model: "Model", limits: "Limits") -> str:
    """Return what is told of a model: its name, what it does, what it takes."""
    from kvc.serving.models.text_model import TextModel

    weights = model.program.residency().totals.nbytes
    told = f"{model.name}: {model.does}; weights {size(weights)}"
    if not isinstance(model, TextModel):
        return told
    count = model.scheduler.status.rows
    rows = plural(count, "row")
    if count > 1 and not model.scheduler.together:
        rows += " that decode one by one (kvc compile --max-batch N: together)"
    adapters = f"; adapters {', '.join(model.adapters)}" if model.adapters else ""
    return f"{told}, caches {_caches(model, limits)}; {rows}{adapters}"


def _caches(model: "TextModel", limits: "Limits") -> str:
    """Return how much memory the caches can take, for answers and earlier texts."""
    scheduler = model.scheduler
    if limits.nbytes is not None:
        return f"at most {size(limits.nbytes)}"
    if scheduler.capacity is None:
        return f"{size(scheduler.foretold_nbytes(1000))} for 1,000 tokens"
    running = scheduler.status.rows * scheduler.foretold_nbytes(scheduler.capacity)
    return f"at most {size(running + limits.most_remembered)}"


def _address(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return escape(f"{shown}:{port}")
