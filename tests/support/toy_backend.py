"""A backend written from `compiler/backends/README.md`, with a payload of its own.

It takes float32 linears without a bias, products and sums. A payload is a header, the
names of the weights, a record for each step and the outputs. `EVENTS` lists what its
run-time half did, in order.
"""

import struct
from typing import ClassVar

import numpy as np

from kvc.compiler.backends import Backend, Lowered
from kvc.runtime.execution.delegate import Delegate, Handle
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadOption, BadProgram

OPS = ("aten::linear", "aten::mul.Tensor", "aten::add.Tensor")
MAGIC = b"TOY\1"
HEADER = struct.Struct("<4sHHHH")  # magic; counts of inputs, names, steps, outputs
STEP = struct.Struct("<HHHQ")  # index in OPS, two operands, offset of the result

EVENTS = []


class Toy(Backend):
    """The half that compiles; `lowered` has the arguments of each call of `lower`."""

    name = "toy"
    lowered: ClassVar = []

    def __init__(self, options):
        self.ops = OPS
        for option, value in options.items():
            if option != "ops" or not isinstance(value, str):
                told = {"expected": "ops = a text of names", "found": repr(value)}
                raise BadOption(backend="toy", option=option, **told)
            self.ops = tuple(op for op in OPS if op.split(":")[2][:3] in value.split())

    def supports(self, method):
        weights = {value.id for value, _ in method.constants}
        taken = (i for i, node in enumerate(method.nodes) if self._takes(node, weights))
        return frozenset(taken)

    def _takes(self, node, weights):
        values = (*node.inputs, *node.outputs)
        if node.op not in self.ops or len(node.inputs) != 2:
            return False
        if node.op == "aten::linear" and node.inputs[1].id not in weights:
            return False
        plain = all(value.type.dtype is DType.FLOAT32 for value in values)
        return plain and node.arguments[2:] in ((), (1,), (None,))

    def lower(self, partitions, constants, symbols):
        graphs = {name: [p.graph for p in some] for name, some in partitions.items()}
        self.lowered.append(graphs)
        bounds = {symbol.name: symbol for symbol in symbols}
        return {
            method: [_lower(graph, bounds) for graph in some]
            for method, some in graphs.items()
        }


class Alone(Toy):
    """The same backend, whose run-time half packs weights for each partition alone."""

    name = "alone"


def _lower(graph, bounds):
    names = sorted({name for _, name in graph.constants})
    numbers = {value.id: i for i, value in enumerate(graph.inputs)}
    for value, name in graph.constants:
        numbers[value.id] = len(graph.inputs) + names.index(name)
    first, steps, nbytes = len(graph.inputs) + len(names), [], 0
    for node in graph.nodes:
        operands = [numbers[value.id] for value in node.inputs]
        numbers[node.outputs[0].id] = first + len(steps)
        steps.append(STEP.pack(OPS.index(node.op), *operands, nbytes))
        nbytes += -(-node.outputs[0].type.max_nbytes(bounds) // 64) * 64
    counts = (len(graph.inputs), len(names), len(steps), len(graph.outputs))
    texts = [struct.pack("<H", len(n.encode())) + n.encode() for n in names]
    outputs = [struct.pack("<H", numbers[value.id]) for value in graph.outputs]
    partitions = [HEADER.pack(MAGIC, *counts), *texts, *steps, *outputs]
    return Lowered(b"".join(partitions), workspace_nbytes=nbytes)


class ToyDelegate(Delegate):
    """The half that runs; it packs each weight once, for all handles."""

    def __init__(self, options):
        self.options = options
        self.weights = {}  # (name, whether it is transposed)
        EVENTS.append("delegate made")

    def init(self, partition, data):
        declared = {self.options.program.names[i].name for i in partition.names}
        try:
            code = Code(partition.payload, declared, partition.workspace_nbytes)
        except (ValueError, struct.error) as error:
            where, what = (
                f"a delegate of method {partition.method}",
                f"payload: {error}",
            )
            raise BadProgram(path=self.options.path, where=where, what=what) from error
        EVENTS.append("handle made")
        return ToyHandle(code, self.take(code, data))

    def take(self, code, data):
        for key in code.weights:
            if key not in self.weights:
                self.weights[key] = _pack(key, data)
        return [self.weights[key] for key in code.weights]

    def packed(self):
        total = {}
        for (name, _), weight in self.weights.items():
            total[name] = total.get(name, 0) + weight.nbytes
        return total

    def close(self):
        EVENTS.append("delegate closed")


class AloneDelegate(ToyDelegate):
    """A run-time half that packs the weights of each handle separately."""

    def take(self, code, data):
        mine = [_pack(key, data) for key in code.weights]
        for number, (key, weight) in enumerate(zip(code.weights, mine, strict=True)):
            self.weights[key[0], (len(self.weights), number)] = weight
        return mine


def _pack(key, data):
    name, turned = key
    with data[name] as buffer:
        EVENTS.append(f"packed {name}")
        return np.array(buffer.array().T if turned else buffer.array(), order="C")


class Code:
    """A payload, decoded and checked."""

    def __init__(self, payload, declared, workspace_nbytes):
        magic, inputs, names, steps, outputs = HEADER.unpack_from(payload)
        self.at = HEADER.size
        _require(magic == MAGIC, "not one of this backend")
        self.payload, self.inputs, self.first = payload, inputs, inputs + names
        texts = [self._text() for _ in range(names)]
        _require(set(texts) <= declared, "a weight that is not declared")
        self.steps = [self._next(STEP) for _ in range(steps)]
        self.outputs = [self._next(struct.Struct("<H"))[0] for _ in range(outputs)]
        _require(self.at == len(payload), "bytes past its end")
        turned = set()
        for number, (op, a, b, offset) in enumerate(self.steps, self.first):
            _require(op < len(OPS), f"no op {op}")
            _require(max(a, b) < number, "an operand that is not there yet")
            _require(offset < workspace_nbytes, "a result outside of the workspace")
            if OPS[op] == "aten::linear":
                _require(inputs <= b < self.first, "a linear without a weight")
                turned.add(b)
        results = range(self.first, self.first + steps)
        _require(set(self.outputs) <= set(results), "an output that no step makes")
        _require(len(set(self.outputs)) == outputs, "the same output twice")
        # One that is read both ways would have to be packed twice.
        self.weights = [(t, inputs + i in turned) for i, t in enumerate(texts)]

    def _next(self, record):
        found = record.unpack_from(self.payload, self.at)
        self.at += record.size
        return found

    def _text(self):
        (length,) = self._next(struct.Struct("<H"))
        self.at += length
        return self.payload[self.at - length : self.at].decode()


def _require(condition, what):
    if not condition:
        raise ValueError(what)


class Counter:
    """Counts how often a handle has run in one execution context."""

    def __init__(self):
        self.runs = 0
        EVENTS.append("counter made")

    def close(self):
        EVENTS.append(f"counter closed after {self.runs} runs")


class ToyHandle(Handle):
    """A bound partition.

    Attributes:
        meeting: a barrier that each run waits for, or None.
        prepared: the arguments of the latest call of `prepare`.
    """

    meeting = None
    prepared = ()

    def __init__(self, code, weights):
        self.code, self.weights = code, weights

    def prepare(self, inputs, outputs, workspace, sizes):
        type(self).prepared = (tuple(inputs), tuple(outputs), dict(sizes))
        counter = workspace.own(self, Counter)
        values = [*inputs, *self.weights]
        _require(len(values) == self.code.first, "another number of inputs")
        targets = dict(zip(self.code.outputs, outputs, strict=True))
        calls = []
        for op, a, b, offset in self.code.steps:
            function, shape = _function(OPS[op], values[a], values[b])
            out = targets.get(len(values))
            if out is None:
                out = workspace.arena.array(offset, DType.FLOAT32, shape)
            calls.append((function, values[a], values[b], out))
            values.append(out)

        def run():
            if self.meeting is not None:
                self.meeting.wait(30)
            counter.runs += 1
            for function, one, other, out in calls:
                function(one, other, out=out)

        return run

    def close(self):
        EVENTS.append("handle closed")


def _function(op, a, b):
    if op == "aten::linear":
        return np.matmul, (*a.shape[:-1], b.shape[1])
    elementwise = np.multiply if op == "aten::mul.Tensor" else np.add
    return elementwise, np.broadcast_shapes(a.shape, b.shape)
