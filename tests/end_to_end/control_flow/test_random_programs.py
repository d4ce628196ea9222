"""Random programs with branches and loops: compiled, saved, loaded and run.

The seed is in the test's id.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_control import meaning, random_control
from random_methods import ROW, SQUARE, STATES

from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.emit.program import emit_program
from kvc.compiler.ir import Program
from kvc.compiler.lower.lowering import update_in_place
from kvc.compiler.lower.pass_lists import passes_for
from kvc.compiler.passes import run_passes
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.provenance import Provenance
from kvc.schema.trees import describe_call, flatten

SOURCE = Provenance("0", "0", "fp32", "", "")


def bundle(program: Program) -> Bundle:
    """Compile a program of the IR whose method is called by position."""
    entry, *blocks = program.methods
    given = tuple(object() for _ in entry.inputs)
    inputs = describe_call(entry.input_names, given, {})[0]
    outputs = flatten(tuple(object() for _ in entry.outputs))[1]
    entry = replace(entry, input_tree=inputs, output_tree=outputs)
    whole = Program(program.symbols, (), program.states, (entry, *blocks))
    passed, _ = run_passes(passes_for(load_recipe("fp32"), ()), whole)
    proven, verdicts = update_in_place(passed)
    return Bundle(emit_program(proven, verdicts, (), SOURCE, {}), {}, {})


def check(seed: int, folder: Path) -> None:
    """Assert that four calls, one for each pair of answers, give what they mean."""
    program = random_control(seed)
    bundle(program).save(folder / "model.kvc")
    states = {name: torch.zeros(SQUARE) for name in STATES}
    generator = torch.Generator().manual_seed(seed)
    with load(folder / "model.kvc") as loaded, loaded.session() as session:
        for number in (0, 3, 1, 2):
            tensors = [
                torch.randint(-3, 4, shape, generator=generator).float()
                for shape in (SQUARE, ROW)
            ]
            tensors += [torch.tensor(bool(number & bit)) for bit in (1, 2)]
            wanted, states = meaning(program, tensors, states)
            found = session.step(*tensors)
            for got, expected in zip(found, wanted, strict=True):
                torch.testing.assert_close(
                    got, expected, rtol=0, atol=0, equal_nan=True
                )
            for name, kept in session.state.items():
                left = torch.from_numpy(np.array(kept))
                torch.testing.assert_close(
                    left, states[name], rtol=0, atol=0, equal_nan=True
                )


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(i, marks=pytest.mark.exhaustive) if i >= 40 else i
        for i in range(2000)
    ],
)
def test_a_random_program_means_what_it_says(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)
