"""`kvc run`: call one method with arrays from files."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import CannotWrite, FileProblem, UnknownName, reason_of
from kvc.tools.options import Loading, loading_options, open_program

if TYPE_CHECKING:
    import numpy as np

    from kvc.runtime import Program, Session
    from kvc.schema.model import Method

    Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option(
    "--method",
    "-m",
    metavar="NAME",
    help="The method; may be left out if the bundle has only one.",
)
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE.npy",
    help="An input; without NAME the next one in order. Repeatable.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write the results here: .npy for a single one, .npz for any number.",
)
@click.option(
    "--session",
    "kept",
    metavar="FILE",
    help="Continue the session saved in FILE, or a new one if there is no such file, "
    "and save it there after the call.",
)
@loading_options
def run(
    bundle: str,
    method: str | None,
    inputs: Sequence[str],
    output: str | None,
    kept: str | None,
    loading: Loading,
) -> None:
    """Call a method of BUNDLE with arrays from .npy files.

    Prints the results. The call starts from fresh state, or with --session FILE from
    the state that the previous call saved.

    An input of row lengths (how many tokens of each row are not padding) may be left
    out: then no token is padding.

    Example: kvc run model.kvc -m decode -i token=token.npy --session talk.session
    """
    with open_program(bundle, loading) as program:
        chosen = _method(program.methods, method)
        _check_output(output, len(chosen.graph.outputs))
        if (
            kept is not None
            and output is not None
            and (Path(kept).resolve() == Path(output).resolve())
        ):
            raise click.UsageError(f"--session and --output are both {output}")
        read = _arrays(chosen, inputs)
        arguments = _arguments(chosen, read)
        open_new = partial(_open_session, program, chosen, read)
        with _session(program, kept, open_new) as session:
            arrays = _leaves(chosen, session.call(chosen.name, **arguments))
            if output is not None:
                _save(Path(output), arrays)
        _print_arrays(arrays)


def _session(
    program: "Program", kept: str | None, open_new: Callable[[], "Session"]
) -> AbstractContextManager["Session"]:
    if kept is None:
        return open_new()
    from kvc.tools.outputs import kept_session

    return kept_session(program, kept, open_new)


def _method(by_name: Mapping[str, "Method"], name: str | None) -> "Method":
    if name is None:
        if len(by_name) != 1:
            raise click.UsageError(f"choose a --method: {', '.join(by_name) or 'none'}")
        (name,) = by_name
    if name not in by_name:
        raise UnknownName(kind="method", name=name, known=tuple(by_name))
    return by_name[name]


def _open_session(
    program: "Program", method: "Method", arrays: Mapping[str, "Array | None"]
) -> "Session":
    """Open a session; if it can choose its rows, with as many rows as the inputs."""
    from kvc.runtime import UnknownName

    for value, array in zip(method.graph.inputs, arrays.values(), strict=True):
        dims = method.graph.values[value].type.dims
        if array is None or array.ndim != len(dims):
            continue
        rows = [n for n, d in zip(array.shape, dims, strict=True) if str(d) == "batch"]
        if rows:
            try:
                return program.session(batch=rows[0])
            except UnknownName:  # no state has rows
                break
    return program.session()


def _arrays(method: "Method", inputs: Sequence[str]) -> dict[str, "Array | None"]:
    """Read the input files; files given without a name take the unused names in order.

    Row lengths that the user leaves out are None.

    Raises:
        UnknownName: the method has no input of a given name.
        click.UsageError: there are fewer or more files than inputs.
    """
    given: dict[str, str] = {}
    unnamed: list[str] = []
    for text in inputs:
        name, equals, path = text.partition("=")
        if equals and name in method.input_names:
            if name in given:
                raise click.UsageError(f"the input {name} is given twice")
            given[name] = path
        elif equals and not Path(text).exists():
            raise UnknownName(kind="input", name=name, known=method.input_names)
        else:
            unnamed.append(text)
    free = [name for name in method.input_names if name not in given]
    row_lengths = (
        None if method.row_lengths is None else method.input_names[method.row_lengths]
    )
    if len(unnamed) == len(free) - 1 and row_lengths in free:
        free.remove(row_lengths)
    if len(unnamed) != len(free):
        raise click.UsageError(_count_problem(method, len(unnamed), free))
    given |= dict(zip(free, unnamed, strict=True))
    return {n: _read(given[n]) if n in given else None for n in method.input_names}


def _count_problem(method: "Method", unnamed: int, free: Sequence[str]) -> str:
    types = (str(method.graph.values[i].type) for i in method.graph.inputs)
    pairs = zip(method.input_names, types, strict=True)
    wanted = ", ".join(f"{name}: {kind}" for name, kind in pairs) or "none"
    if unnamed < len(free):
        problem = f"give an --input for {', '.join(free[unnamed:])}"
    else:
        problem = f"{unnamed - len(free)} more are given"
    return f"method {method.name} takes the inputs ({wanted}); {problem}"


def _read(path: str) -> "Array":
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileProblem(path=path, reason=reason_of(error)) from error
    except (ValueError, EOFError) as error:
        reason = "not a .npy file of plain numbers"
        raise FileProblem(path=path, reason=reason) from error
    except MemoryError as error:
        reason = "what it says to hold does not fit into memory"
        raise FileProblem(path=path, reason=reason) from error
    if not isinstance(array, np.ndarray):
        raise FileProblem(path=path, reason="an .npz archive; give one .npy an input")
    return array


def _arguments(
    method: "Method", arrays: Mapping[str, "Array | None"]
) -> dict[str, object]:
    """Nest the arrays like the method's arguments."""
    from kvc.schema.trees import unflatten

    leaves = list(arrays.values())
    call = json.loads(method.input_tree)
    return {
        name: unflatten(json.dumps(tree), leaves) for name, tree in call["arguments"]
    }


def _leaves(method: "Method", result: object) -> list["Array"]:
    """Return the results except constants; numbers become arrays without dimensions."""
    import numpy as np

    from kvc.schema.trees import match

    return [np.asarray(leaf) for leaf in match(method.output_tree, result)]


def _print_arrays(arrays: Sequence["Array"]) -> None:
    import numpy as np

    for index, array in enumerate(arrays):
        shape = ", ".join(map(str, array.shape))
        click.echo(f"result {index}: {array.dtype}[{shape}]")
        click.echo(np.array2string(array, threshold=64, edgeitems=3, precision=6))


def _check_output(output: str | None, count: int) -> None:
    from kvc.tools.outputs import check_output

    if output is None:
        return
    if not output.endswith((".npy", ".npz")):
        raise click.UsageError(f"--output {output}: the name must end in .npy or .npz")
    if output.endswith(".npy") and count != 1:
        raise click.UsageError(f"the method has {count} results; give --output an .npz")
    check_output(output)


def _save(path: Path, arrays: Sequence["Array"]) -> None:
    """Write arrays under a temporary name, then rename, so that no one sees a part."""
    import numpy as np

    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".npy":
                np.save(file, arrays[0], allow_pickle=False)
            else:
                named = {f"result_{i}": array for i, array in enumerate(arrays)}
                np.savez(file, allow_pickle=False, **named)
        partial.replace(path)
    except OSError as error:
        raise CannotWrite(path=str(path), reason=reason_of(error)) from error
    finally:
        partial.unlink(missing_ok=True)
