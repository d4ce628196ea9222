"""Compute a function of an `.mlpackage` with coremltools' own operators.

A script, since coremltools is not to be imported by the tests' process:

    python mil_values.py PACKAGE CALLS.json ARRAYS.npz RESULTS.npz

CALLS is a list of function names, one for each call. ARRAYS has `CALL.NAME` for each
input, where CALL is the number of the call. coremltools reads the package. Each
operator is then built once more with constants for its operands, so that coremltools'
own `value_inference` computes it. Operators without such a computation are in `OWN`.
States begin as zeros and keep their values from call to call.
"""

import json
import sys
from pathlib import Path

import numpy as np

from kvc.runtime.delegates.coreml.worker import hide_converters


def dequantized(data, scale, offset=None):
    assert offset is None
    times = [a // b for a, b in zip(data.shape, scale.shape, strict=True)]
    wide = np.repeat(np.repeat(scale, times[0], 0), times[1], 1)
    return (data.astype(np.float32) * wide.astype(np.float32)).astype(scale.dtype)


def silu(x):
    wide = x.astype(np.float32)
    return (wide / (1 + np.exp(-wide))).astype(x.dtype)


OWN = {"silu": silu, "constexpr_blockwise_shift_scale": dequantized}


class Interpreter:
    def __init__(self, package: Path) -> None:
        from coremltools.converters.mil.frontend.milproto import load as milproto
        from coremltools.models import MLModel
        from coremltools.models.utils import _try_get_weights_dir_path

        model = MLModel(str(package), skip_model_load=True)
        weights = _try_get_weights_dir_path(str(package))
        spec = model.get_spec()
        self.program = milproto.load(spec, spec.specificationVersion, weights)
        self.states: dict[str, np.ndarray] = {}

    def call(self, name, given):
        function = self.program.functions[name]
        values = {n: given[n] for n in function.inputs if n in given}
        for var in function.inputs.values():
            if var.name not in given:
                shape = var.sym_type.wrapped_type().get_shape()
                self.states.setdefault(var.name, np.zeros(shape, np.float16))
        for op in function.operations:
            if op.op_type != "const":
                self.run(op, values)
        return {var.name: values[var.name] for var in function.outputs}

    def run(self, op, values):
        (result,) = op.outputs
        if op.op_type == "read_state":
            values[result.name] = self.states[op.input.name]
            return
        if op.op_type == "coreml_update_state":
            values[result.name] = self.states[op.state.name] = self.value(
                op.value, values
            )
            return
        inputs = {n: self.given(v, values) for n, v in op.inputs.items()}
        inputs = {n: v for n, v in inputs.items() if v is not None}
        if op.op_type in OWN:
            made = OWN[op.op_type](**inputs)
        else:
            made = inferred(op.op_type, inputs)
        assert made is not None, op.op_type
        assert np.shape(made) == tuple(result.shape), (op.op_type, np.shape(made))
        values[result.name] = np.asarray(made)

    def given(self, var, values):
        if isinstance(var, list | tuple):
            return [self.value(each, values) for each in var]
        return None if var is None else self.value(var, values)

    def value(self, var, values):
        found = values.get(var.name, var.val)
        return bool(found) if isinstance(found, np.bool_) else found


def inferred(kind, inputs):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813  # its own way
    from coremltools.converters.mil.mil import Function

    with Function({}, opset_version=ct.target.iOS18):
        return getattr(mb, kind)(**inputs).val


def main(package, calls, arrays, results):
    interpreter, given = Interpreter(Path(package)), np.load(arrays)
    made = {}
    with np.errstate(all="ignore"):
        for number, name in enumerate(json.loads(Path(calls).read_text())):
            start = f"{number}."
            own = {
                k.removeprefix(start): given[k] for k in given if k.startswith(start)
            }
            found = interpreter.call(name, own)
            made |= {f"{start}{key}": value for key, value in found.items()}
    made |= {f"state.{name}": value for name, value in interpreter.states.items()}
    np.savez(results, **made)


if __name__ == "__main__":
    hide_converters()
    main(*sys.argv[1:])
