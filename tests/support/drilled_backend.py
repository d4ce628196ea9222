"""A backend written with only the drill in `compiler/backends/README.md`.

It supports sums, products and norms, and views. Tests may change `FUNCTIONS`.
"""

import numpy as np

from kvc.compiler.backends import BlockBackend
from kvc.runtime.delegates.function_handle import FunctionHandle
from kvc.runtime.execution.delegate import Delegate
from kvc.schema.backends.operands import operands_of
from kvc.schema.dtypes import DType

VIEWS = ("aten::view", "aten::transpose.int", "aten::unsqueeze")


def add(out, one, other, alpha):
    np.add(one, other * alpha, out=out)


def multiply(out, one, other):
    np.multiply(one, other, out=out)


def rms_norm(out, x, shape, weight, eps):
    scale = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)
    np.multiply(x * scale.astype(np.float32), 1 if weight is None else weight, out=out)


FUNCTIONS = {
    "aten::add.Tensor": add,
    "aten::mul.Tensor": multiply,
    "aten::rms_norm": rms_norm,
}


def why_not(op, arguments, results):
    if op not in FUNCTIONS and op not in VIEWS:
        return "drilled has no such operator"
    if op == "aten::rms_norm" and (arguments[3] is None or len(arguments[1]) != 1):
        return "drilled norms one axis, with an epsilon"
    dtypes = {operand.type.dtype for operand in operands_of(arguments)}
    dtypes |= {result.dtype for result in results}
    return "" if dtypes == {DType.FLOAT32} else "drilled computes float32 alone"


class DrilledBackend(BlockBackend):
    name = "drilled"
    supported = staticmethod(why_not)


class DrilledDelegate(Delegate):
    def __init__(self, options):
        self.options = options

    def init(self, partition, data):
        return FunctionHandle(self.options, partition, data, FUNCTIONS, why_not)

    def packed(self):
        return {}

    def close(self):
        """Do nothing: handles share no resources."""
