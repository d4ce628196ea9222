"""All instruction sets that this processor has give the same results."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import Case
from quantized_rows import in_blocks, quantized, some_blocks, some_rows
from torch import Tensor

from kvc.runtime.native.library import find_library
from kvc.schema.errors import BadSetting

I8, U8 = torch.int8, torch.uint8
LEAST, *OTHERS = find_library().processors


@pytest.fixture
def results_by() -> Iterator[Callable[[str, Case, Tensor], Tensor]]:
    """Return what a kernel gives where an instruction set is used."""
    library = find_library()
    kept = library.processor

    def results(processor: str, case: Case, like: Tensor) -> Tensor:
        library.use(processor)
        built = native_graph(case, (like,))
        assert built is not None
        (found,) = run_native(*built, (like,), 2)
        return found

    yield results
    library.use(kept)


@pytest.mark.parametrize("processor", OTHERS)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 17, 50])
@pytest.mark.parametrize(
    ("columns", "depth"), [(1, 1), (25, 33), (50, 96), (7, 264), (97, 129)]
)
def test_int8_products_have_the_same_bits(results_by, processor, rows, columns, depth):
    weight = torch.randint(-128, 128, (columns, depth), dtype=I8)
    arguments = (
        *quantized(some_rows(rows, depth)),
        weight,
        torch.rand(columns),
        torch.randn(columns),
    )
    case, like = Case("kvc::linear_qd8", arguments), torch.empty(rows, columns)
    expected = results_by(LEAST, case, like)
    assert torch.equal(results_by(processor, case, like), expected)


@pytest.mark.parametrize("processor", OTHERS)
@pytest.mark.parametrize("rows", [1, 3, 8, 17, 50])
def test_int4_products_differ_by_how_sums_are_rounded(results_by, processor, rows):
    torch.manual_seed(rows)
    weight = torch.randint(0, 256, (5, 40, 8, 4), dtype=U8)
    weight[0, :, 0], weight[0, :, 1] = 0, 0xFF
    scale = (torch.rand(5, 10, 8) + 0.1).bfloat16()
    arguments = (*quantized(some_rows(rows, 320)), weight, scale, None)
    case, like = Case("kvc::linear_qb4", arguments), torch.empty(rows, 40)
    expected = results_by(LEAST, case, like)
    atol = 1e-6 * float(expected.abs().max())
    found = results_by(processor, case, like)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("processor", OTHERS)
@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("width", [7, 64, 100])
def test_float_products_differ_by_how_sums_are_rounded(
    results_by, processor, rows, width
):
    torch.manual_seed(rows)
    arguments = torch.randn(rows, width), torch.randn(13, width), torch.randn(13)
    case, like = Case("aten::linear", arguments), torch.empty(rows, 13)
    expected = results_by(LEAST, case, like)
    found = results_by(processor, case, like)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


WIDE = torch.cat(
    (
        torch.linspace(-15, 15, 4001),
        torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 1e-40, -1e-45]),
        torch.tensor([1e38, -1e38, 1e6, 2.0**20, 1e7, 88.5, 88.8, -104.0]),
    )
)
FUNCTIONS = ["exp", "sigmoid", "silu", "erf", "tanh", "expm1", "log", "sin", "cos"]


@pytest.mark.parametrize(
    "case",
    [
        *(Case(f"aten::{name}", (WIDE,)) for name in FUNCTIONS),
        *(Case("aten::gelu", (WIDE, kind)) for kind in ("none", "tanh")),
    ],
    ids=lambda case: f"{case.op} {case.arguments[1:]}",
)
def test_functions_have_the_same_bits_anywhere_on_all(results_by, case):
    expected = results_by(LEAST, case, WIDE)
    for processor in OTHERS:
        bits = results_by(processor, case, WIDE).view(torch.int32)
        assert torch.equal(bits, expected.view(torch.int32))
    for strided in (False, True):
        some = Case(case.op, (WIDE[5:], *case.arguments[1:]))
        some = some.strided() if strided else some
        found = results_by(LEAST, some, WIDE[5:])
        assert torch.equal(found.view(torch.int32), expected[5:].view(torch.int32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_exact_but_for_their_last_bits(results_by, name):
    exact = getattr(torch.nn.functional if name == "silu" else torch, name)(
        WIDE.double()
    )
    found = results_by(LEAST, Case(f"aten::{name}", (WIDE,)), WIDE)
    rounded = exact.float()
    torch.testing.assert_close(found, rounded, rtol=5e-7, atol=1e-43, equal_nan=True)
    zeros = rounded == 0
    assert torch.equal(found[zeros].signbit(), rounded[zeros].signbit())


def test_gelu_is_exact_but_for_its_last_bits(results_by):
    x = WIDE[:4001]
    exact = x.double() / 2 * torch.special.erfc(-x.double() / 2**0.5)
    found = results_by(LEAST, Case("aten::gelu", (x, "none")), x)
    torch.testing.assert_close(found.double(), exact, rtol=5e-7, atol=1e-44)


def test_avx512_has_the_bits_of_avx2(results_by):
    if "avx512_vnni" not in OTHERS:
        pytest.skip("this processor has no AVX-512 VNNI; see tools/dev/emulate.sh")
    weight = torch.randint(0, 256, (5, 40, 8, 4), dtype=U8)
    scale = (torch.rand(5, 10, 8) + 0.1).bfloat16()
    for rows in (1, 3, 8, 17, 50):
        arguments = (*quantized(some_rows(rows, 320)), weight, scale, None)
        case, like = Case("kvc::linear_qb4", arguments), torch.empty(rows, 40)
        expected = results_by("avx2", case, like)
        assert torch.equal(results_by("avx512_vnni", case, like), expected)
        arguments = (*in_blocks(some_blocks(rows, 320)), weight, scale, None, None)
        case = Case("kvc::linear_q4", arguments)
        expected = results_by("avx2", case, like)
        assert torch.equal(results_by("avx512_vnni", case, like), expected)
        x = some_rows(rows, 100)
        case, like = Case("aten::linear", (x, some_rows(13, 100), None)), x[:, :13]
        expected = results_by("avx2", case, like)
        assert torch.equal(results_by("avx512_vnni", case, like), expected)


def used_where(variable: str) -> subprocess.CompletedProcess[str]:
    """Say which instruction set a process uses where KVC_PROCESSOR has a value."""
    code = "from kvc.runtime.native.library import find_library as found\n"
    code += "print(found().processor)"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KVC_PROCESSOR": variable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_variable_names_what_is_used():
    assert used_where(LEAST).stdout == f"{LEAST}\n"


def test_a_variable_that_names_nothing_is_refused():
    expected = "KVC_PROCESSOR: expected one of " + ", ".join((LEAST, *OTHERS))
    assert f"{expected}, got abacus" in used_where("abacus").stderr


def test_an_instruction_set_that_is_not_there_is_refused():
    library = find_library()
    used = library.processor
    with pytest.raises(BadSetting) as caught:
        library.use("abacus")
    assert caught.value.found == "abacus"
    assert library.processor == used
