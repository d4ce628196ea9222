"""Call one operator on a Vulkan device, as the backend does, into guarded memory."""

from collections.abc import Sequence

from kernel_calls import Guarded
from torch import Tensor

from kvc.runtime.delegates.partition_memory import place_outputs
from kvc.runtime.delegates.vulkan.binding import Binder, Bound, Places
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.mirrors import Mirrors
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.execution.executor import Unbegun
from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arenas import Within
from kvc.runtime.memory.arrays import Array, tensor_as_array
from kvc.schema.graph import Graph
from kvc.schema.model import Block


def run_on_device(device, graph, tensors, expected) -> list[Tensor]:
    outs = [Guarded(each.shape, each.dtype) for each in expected]
    inputs = [tensor_as_array(tensors[value]) for value in graph.inputs]
    outputs = [tensor_as_array(out.tensor) for out in outs]
    run(device, graph, inputs, outputs)
    return [
        out.check(tuple(each.shape)) for out, each in zip(outs, expected, strict=True)
    ]


def run(
    device: Device, graph: Graph, inputs: Sequence[Array], outputs: Sequence[Array]
) -> None:
    shared = not device.separate
    mirrors = Mirrors(device, inputs, outputs)
    scratch = DeviceBuffer(device, graph.scratch_nbytes, "a test", shared=shared)
    places = Places([mirrors.buffer, scratch])

    def reserve(nbytes: int) -> Array:
        made = DeviceBuffer(device, nbytes, "a test", shared=shared)
        places.add(made)
        return made.bytes

    steps = Steps(places.find, reserve)
    outs = [mirrors.array(array) for array in outputs]
    memory = GraphMemory(
        scratch=Within(scratch.bytes),
        constant=_no_constant,
        given=place_outputs(graph, {}, outs),
        callers={
            value: mirrors.array(array)
            for value, array in zip(graph.inputs, inputs, strict=True)
        },
    )
    binder = Binder("test", Block(graph, ()), {}, memory, steps)
    binder.bind(outs)
    try:
        Bound(device, mirrors, steps, places, binder.fail_at)()
    except Unbegun as unbegun:
        raise (unbegun.__cause__ or unbegun) from None


def _no_constant(name: int) -> Array:
    raise AssertionError(f"no named data {name} here")
