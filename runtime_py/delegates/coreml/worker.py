"""Build an `.mlpackage` by coremltools, in a subprocess.

The script is started with the folder of a job, which has `job.json` (functions, as
`package.py` writes them) and a file of bytes for each constant. The script writes
`model.mlpackage` to this folder. coremltools imports packages for its converters, if
they are installed: torch, and executorch, which kvc installs without its dependencies.
The script needs no converter, so it blocks these imports.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_UNWANTED: Final = (
    "torch",
    "executorch",
    "tensorflow",
    "sklearn",
    "xgboost",
    "transformers",
)
_LEAST: Final = 10  # elements of a constant stored in the file of weights
_TYPES: Final = {
    "fp16": "<f2",
    "fp32": "<f4",
    "int32": "<i4",
    "int8": "i1",
    "bool": "?",
}


def hide_converters() -> None:
    """Block coremltools' imports of the packages that only its converters need."""
    for name in _UNWANTED:
        sys.modules[name] = None  # type: ignore[assignment]


def end_with_starter() -> None:
    """End this process as soon as its parent process has ended."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def build(folder: Path) -> None:
    """Build the package of the job in `folder`."""
    job = json.loads((folder / "job.json").read_text())
    sys.path[:] = job["paths"]
    import coremltools as ct
    from coremltools.converters.mil.converter import mil_convert
    from coremltools.converters.mil.mil import Program

    program = Program()
    for function in job["functions"]:
        program.add_function(function["name"], _function(function, job, folder))
    program.default_function_name = job["functions"][0]["name"]
    # As in `coremltools.utils.save_multifunction`: write the program exactly as built.
    program.skip_all_passes = True
    program.export_as_multifunction = True
    model = mil_convert(
        program,
        convert_from="milinternal",
        convert_to="mlprogram",
        specification_version=ct.target.iOS18,
        compute_units=ct.ComputeUnit.CPU_ONLY,
        skip_model_load=True,
    )
    package = folder / "model.mlpackage"
    model.save(str(package))
    # protobuf would otherwise write maps in any order.
    raw = model.get_spec().SerializeToString(deterministic=True)
    (package / "Data" / "com.apple.CoreML" / "model.mlmodel").write_bytes(raw)


def _function(told: Mapping[str, Any], job: Mapping[str, Any], folder: Path) -> object:
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813  # its own way
    from coremltools.converters.mil.mil import Function

    specs = {
        name: mb.TensorSpec(tuple(shape), dtype=_dtype(dtype))
        for name, dtype, shape in told["inputs"]
    }
    specs |= {
        name: mb.StateTensorSpec(tuple(shape), dtype=_dtype(dtype))
        for name, dtype, shape in told["states"]
    }
    with Function(specs, opset_version=ct.target.iOS18) as function:
        names: dict[str, object] = dict(function.inputs)
        for call in told["calls"]:
            inputs = {
                name: _given(given, names, job, folder)
                for name, given in call["inputs"].items()
            }
            name, dtype, shape = call["result"]
            made = getattr(mb, call["kind"])(**inputs, name=name)
            if tuple(made.shape) != tuple(shape) or made.dtype != _dtype(dtype):
                found = f"{made.dtype.__name__}{list(made.shape)}"
                raise ValueError(f"{call['kind']} makes {found}, not {dtype}{shape}")
            names[name] = made
        function.set_outputs([names[name] for name in told["outputs"]])
    return function


def _dtype(name: str) -> object:
    from coremltools.converters.mil.mil import types

    return getattr(types, name)


def _given(
    given: Mapping[str, Any],
    names: dict[str, object],
    job: Mapping[str, Any],
    folder: Path,
) -> object:
    """Return an input of a call in coremltools' form."""
    import numpy as np

    ((kind, value),) = given.items()
    match kind:
        case "tensor":
            return _tensor(value, names, job, folder)
        case "tensors":
            return [_tensor(one, names, job, folder) for one in value]
        case "integers":
            return np.array(value, np.int32)
        case "number":
            number, dtype = value
            return np.dtype(_TYPES[dtype]).type(number)
        case _:
            return value


def _tensor(
    name: str, names: dict[str, object], job: Mapping[str, Any], folder: Path
) -> object:
    """Return a tensor by name; a name without a tensor yet is a constant."""
    import numpy as np
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813  # its usual name

    if name not in names:
        dtype, shape, file = job["constants"][name]
        held = np.fromfile(folder / file, _TYPES[dtype]).reshape(shape)
        made = mb.const(val=held, name=name)
        if held.size >= _LEAST and dtype != "bool":
            made.op.weight_id = name  # functions with the same constant share its bytes
        names[name] = made
    return names[name]


if __name__ == "__main__":
    end_with_starter()
    hide_converters()
    build(Path(sys.argv[1]))
