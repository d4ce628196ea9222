"""Write the files that these tests read, and what ExecuTorch says of them.

    python tests/tools/executorch/make_files.py

needs `executorch==1.5.1` (with `torch==2.13.0` and `torchao==0.18.0`) in an environment
of its own. The tests need none of it: the files are part of the project.
"""

import json
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.exir import (
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import KernelCall, Tensor
from torch import nn
from torch.export import Dim, export

FILES = Path(__file__).parent / "files"


class Cache(nn.Module):
    """Keeps the last eight rows, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.register_buffer("rows", torch.zeros(1, 8, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.copy_(torch.cat([self.rows[:, 1:], self.proj(x)], 1))
        self.count.add_(1)
        return self.rows.sum(1) + self.count


class Feed(nn.Module):
    """Two products."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Choice(nn.Module):
    """Doubles what is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def programs() -> dict[str, object]:
    """Return each program by the name of its file."""
    cache, feed = Cache().eval(), Feed().eval()
    step = export(cache, (torch.randn(1, 1, 4),))
    rows = {0: Dim("seq", min=1, max=16)}
    methods = {
        "prefill": export(feed, (torch.randn(4, 8),), dynamic_shapes=(rows,)),
        "decode": export(feed, (torch.randn(1, 8),)),
    }
    library = {name: [XnnpackPartitioner()] for name in methods}
    outside = ExecutorchBackendConfig(external_constants=True)
    return {
        "state": to_edge(step).to_executorch(),
        "external": to_edge(step).to_executorch(outside),
        "delegate": to_edge_transform_and_lower(
            step, partitioner=[XnnpackPartitioner()]
        ).to_executorch(),
        "methods": to_edge_transform_and_lower(
            methods, partitioner=library, constant_methods={"most_rows": 16}
        ).to_executorch(),
        "choice": to_edge(export(Choice(), (torch.randn(4),))).to_executorch(),
    }


def said(content: bytes) -> dict[str, object]:
    """Return what ExecuTorch reads in a program."""
    file = deserialize_pte_binary(content)
    named = file.named_data
    blobs = {}
    if named:
        blobs = {
            k: len(named.buffers[e.buffer_index]) for k, e in named.pte_data.items()
        }
    return {
        "named": blobs,
        "methods": [
            _method(plan, file.program) for plan in file.program.execution_plan
        ],
    }


def _method(plan, program) -> dict[str, object]:
    calls = [call.instr_args for call in plan.chains[0].instructions]
    names = [f"{op.name}.{op.overload}".rstrip(".") for op in plan.operators]
    tensors = {
        index: [
            value.val.scalar_type.name,
            list(value.val.sizes),
            _memory(value.val.allocation_info),
        ]
        for index, value in enumerate(plan.values)
        if isinstance(value.val, Tensor)
    }
    return {
        "name": plan.name,
        "inputs": list(plan.inputs),
        "outputs": list(plan.outputs),
        "buffers": list(plan.non_const_buffer_sizes),
        "tensors": tensors,
        "kernels": [
            [names[c.op_index], list(c.args)]
            for c in calls
            if isinstance(c, KernelCall)
        ],
        "calls": len(calls),
        "delegates": [
            [d.id, len(program.backend_delegate_data[d.processed.index].data)]
            for d in plan.delegates
        ],
    }


def _memory(place) -> list[int] | None:
    if place is None:
        return None
    return [place.memory_id, place.memory_offset_low | place.memory_offset_high << 32]


def main() -> None:
    """Write all files."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    facts = {}
    for name, program in programs().items():
        (FILES / f"{name}.pte").write_bytes(program.buffer)
        program.write_tensor_data_to_file(str(FILES))
        facts[name] = said(program.buffer)
    (FILES / "said.json").write_text(json.dumps(facts, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
