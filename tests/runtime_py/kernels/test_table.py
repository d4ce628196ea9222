import subprocess
import sys

from kvc.runtime.kernels import (
    elementwise,
    experts,
    fused,
    index,
    linear_algebra,
    quantized,
    quantized_blocks,
    reductions,
    shape,
    updates,
    views,
)
from kvc.runtime.kernels.table import load_kernels
from kvc.schema.ops import CONTROL_OPS, OPS, Aliasing

FAMILIES = (
    elementwise,
    experts,
    fused,
    index,
    linear_algebra,
    quantized,
    quantized_blocks,
    reductions,
    shape,
    updates,
    views,
)


def test_there_is_a_kernel_for_every_op_that_is_no_call():
    assert set(load_kernels()) == set(OPS) - CONTROL_OPS


def test_no_two_families_hold_the_same_op():
    assert sum(len(family.KERNELS) for family in FAMILIES) == len(load_kernels())


def test_families_of_views_updates_and_checks_hold_just_those():
    held = (
        (views, {Aliasing.VIEW}),
        (updates, {Aliasing.UPDATE, Aliasing.CHECK}),
    )
    for family, kinds in held:
        ops = {name for name, op in OPS.items() if op.aliasing in kinds}
        assert set(family.KERNELS) == ops


def test_the_package_imports_no_torch_before_the_first_load():
    code = "import sys, kvc.runtime.kernels; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
