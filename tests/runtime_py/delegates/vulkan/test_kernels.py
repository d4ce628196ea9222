"""Every operator that the backend takes against eager, over the cases that ops have."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import vulkan_here
from daily import some_of_each
from native_calls import native_graph
from op_cases import CASES, Case, kind_of
from vulkan_calls import run_on_device

from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.indexing import CHECKS, FRESH, UPDATES
from kvc.schema.backends.operands import arguments_of
from kvc.schema.backends.vulkan import TAKEN, why_not


@pytest.fixture(params=["shared", "apart"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with vulkan_here.memory(separate=request.param == "apart") as found:
        yield found


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


def is_taken(case: Case) -> bool:
    if case.op not in TAKEN:
        return False
    built = native_graph(case, case.eager())
    if built is None:
        return False
    (instruction,) = built[0].instructions
    types = [built[0].values[value].type for value in instruction.results]
    return not why_not(case.op, arguments_of(built[0], instruction), types)


HERE = [case for case in CASES if is_taken(case)]


def check(device: Device, case: Case) -> None:
    with torch.inference_mode():
        expected = case.eager()
    built = native_graph(case, expected)
    assert built is not None
    found = run_on_device(device, *built, expected)
    for one, other in zip(found, expected, strict=True):
        near = 1e-5 if other.is_floating_point() else 0
        small = near * (5 if case.op == "aten::linear" else 1)
        with vulkan_here.right_code():
            torch.testing.assert_close(
                one, other, rtol=near, atol=small, equal_nan=True
            )


@pytest.mark.parametrize("case", some_of_each(8, HERE, kind_of), ids=case_id)
def test_an_operator_equals_eager(device: Device, case: Case) -> None:
    check(device, case)


@pytest.mark.parametrize("case", some_of_each(8, HERE, kind_of), ids=case_id)
def test_an_operator_takes_operands_with_gaps(device: Device, case: Case) -> None:
    check(device, case.strided())


FAR = torch.tensor([4097.0, 65536.0, 131072.0, 1e6, 3e9, 16777217.0e20, 3e38])


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_many_turns_are_exact(device: Device, name: str) -> None:
    check(device, Case(f"aten::{name}", (torch.cat([FAR, -FAR]),)))


@pytest.mark.parametrize("exponent", [1 / 3, -0.4, 65])
def test_powers_of_the_least_and_the_greatest(device: Device, exponent: float) -> None:
    x = torch.tensor([1e-40, 2e-38, 1e30, 3e38])
    check(device, Case("aten::pow.Tensor_Scalar", (x, exponent)))


# Those of the tests of states, of faults, of int8, and what is no step.
ELSEWHERE = {
    *("kvc::quantize_rows", "kvc::linear_qd8", "kvc::embedding_q8"),
    *("kvc::after", "kvc::append", "kvc::replace"),
    *("kvc::check_index", "kvc::check_rows", "kvc::check_size"),
}


def test_every_operator_that_is_taken_has_a_kernel_and_a_case() -> None:
    assert {*FRESH, *UPDATES, *CHECKS, "kvc::check_size"} == TAKEN
    assert TAKEN - {case.op for case in HERE} == ELSEWHERE


@pytest.mark.parametrize("op", ["aten::sin", "aten::tanh"])
def test_a_zero_keeps_its_sign(device: Device, op: str) -> None:
    x = torch.tensor([0.0, -0.0])
    built = native_graph(Case(op, (x,)), [x])
    assert built is not None
    (found,) = run_on_device(device, *built, [x])
    assert found.signbit().tolist() == [False, True]


def test_a_float16_is_the_nearest_and_of_two_the_even_one(device: Device) -> None:
    """All float16, what lies in their middles, and what is next to these."""
    whole = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    whole[-1] = 65536  # what would come next, instead of infinity
    middles = ((whole[1:] + whole[:-1]) / 2).astype(np.float32)
    around = [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
    sizes = np.concatenate([whole.astype(np.float32), middles, *around])
    odd = np.array([np.inf, np.nan, 3e38, 1e-45, 1e-30], np.float32)
    values = np.concatenate([sizes, -sizes, odd, -odd])
    update = torch.from_numpy(values).reshape(1, 1, -1)
    cache = torch.zeros(update.shape, dtype=torch.float16)
    arguments = (cache, update, torch.tensor([0]), 1, "linear", None, 0)
    built = native_graph(Case("kvc::cache_update", arguments), [cache])
    assert built is not None
    (found,) = run_on_device(device, *built, [cache])
    wanted = update.to(torch.float16)
    assert torch.equal(found.isnan(), wanted.isnan())
    bits = [t[~t.isnan()].view(torch.int16) for t in (found, wanted)]
    assert torch.equal(*bits)
