# ruff: noqa: E501  texts and tables read best unbroken
"""Fourier transforms of fixed lengths, against eager."""

import pytest
import torch
from daily import only
from module_outcomes import Applied, outcome
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError, KernelFailed

X = torch.arange(60.0).reshape(3, 4, 5).sin()
fft, pairs = torch.fft, torch.view_as_real


def whole(x: Tensor) -> Tensor:
    return torch.complex(x, x.flip(-1))


CASES = {
    "rfft": lambda x: pairs(fft.rfft(x)),
    "rfft, cut, along another axis": lambda x: pairs(fft.rfft(x, 3, 1, "ortho")),
    "rfft, filled up": lambda x: pairs(fft.rfft(x, n=8, norm="forward")),
    "rfft of one number": lambda x: pairs(fft.rfft(x[..., :1])),
    "fft of real numbers": lambda x: pairs(fft.fft(x)),
    "fft": lambda x: pairs(fft.fft(whole(x), 7, norm="ortho")),
    "ifft": lambda x: pairs(fft.ifft(whole(x), dim=0)),
    "irfft": lambda x: fft.irfft(whole(x)),
    "irfft of an odd length": lambda x: fft.irfft(whole(x), 7, norm="forward"),
    "irfft, cut and filled up": lambda x: (fft.irfft(whole(x), 4), fft.irfft(whole(x), 12, norm="ortho")),
    "irfft of real numbers": lambda x: fft.irfft(x, dim=1),
    "hfft": lambda x: (fft.hfft(whole(x)), fft.hfft(whole(x), 7, 1, "ortho"), fft.hfft(x, norm="forward")),
    "ihfft": lambda x: (pairs(fft.ihfft(x).resolve_conj()), pairs(fft.ihfft(x, 4, norm="forward").resolve_conj())),
    "integers": lambda x: (pairs(fft.rfft((x * 9).long())), fft.irfft((x * 9).int())),
    "a convolution": lambda x: fft.irfft(fft.rfft(x) * fft.rfft(x.flip(0)), n=5),
    "planes": lambda x: (pairs(fft.fft2(x)), pairs(fft.rfft2(x, (3, 6), norm="ortho"))),
    "planes, back": lambda x: (fft.irfft2(fft.rfft2(x), (4, 5)), fft.ifft2(whole(x)).real),
    "all axes": lambda x: (pairs(fft.fftn(x)), pairs(fft.rfftn(x, (4, 8)))),
    "all axes, back": lambda x: (fft.irfftn(whole(x), dim=(0, 2)), fft.ifftn(x).imag),
    "one axis of several": lambda x: (pairs(fft.rfftn(x, dim=0)), fft.irfft2(whole(x), dim=1), fft.hfftn(x, 6, -1)),
    "hfft of planes and all axes": lambda x: (fft.hfft2(whole(x)), fft.hfft2(x, (3, 7), norm="ortho"), fft.hfftn(whole(x), (4, 6)), fft.hfftn(whole(x))),
    "ihfft of planes and all axes": lambda x: (pairs(fft.ihfft2(x).resolve_conj()), pairs(fft.ihfft2(x, (3, 7), norm="ortho").resolve_conj()), pairs(fft.ihfftn(x, dim=(0, 2)).resolve_conj())),
    "double": lambda x: pairs(fft.rfft(x.double())),
    "shifted": lambda x: pairs(fft.fftshift(fft.fft(x))),
    "a spectrogram": lambda x: torch.stft(x.reshape(3, 20), 8, 2, window=torch.hann_window(8), return_complex=True).abs().pow(2),
    "windows shorter than the transform": lambda x: pairs(x.reshape(-1).stft(8, 3, 6, torch.hann_window(6), normalized=True, return_complex=True)),
    "all bins, not centred": lambda x: pairs(torch.stft(x.reshape(3, 20), 8, center=False, onesided=False, return_complex=True)),
    "centred by zeros": lambda x: pairs(torch.stft(x.reshape(3, 20), 6, pad_mode="constant", return_complex=True)),
    "back from windows": lambda x: torch.istft(whole(x.transpose(1, 2)[:, :4]), 6, 2, window=torch.hann_window(6)),
    "back, normalized, of one row": lambda x: torch.istft(whole(x[0]), 6, 3, 5, torch.hamming_window(5), normalized=True),
    "back, not centred, all bins": lambda x: torch.istft(whole(x), 4, 1, center=False, onesided=False),
    "back, cut and filled up": lambda x: (torch.istft(whole(x), 6, 2, length=5), torch.istft(whole(x), 6, 2, length=14)),
}  # fmt: skip


# Each transform, and each way to cut, fill up and centre.
DAILY = [
    "rfft, cut, along another axis",
    "rfft of one number",
    "fft",
    "irfft of an odd length",
    "hfft",
    "ihfft",
    "integers",
    "planes",
    "all axes, back",
    "a spectrogram",
    "windows shorter than the transform",
    "all bins, not centred",
    "centred by zeros",
    "back, normalized, of one row",
    "back, not centred, all bins",
    "back, cut and filled up",
]


@only(name=DAILY)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*window was not provided")
@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
def test_it_equals_eager(name, tmp_path):
    found = outcome(Applied(CASES[name]), (X,), {}, tmp_path / "function.kvc")

    assert (found.kind, found.reason) == ("equal", "")


def test_a_quarter_turn_leaves_small_numbers_beside_great_ones(tmp_path):
    x = torch.tensor([4.0, 4, 0, 2.0**63, 0, 1, 1])
    found = outcome(Applied(fft.irfft), (x,), {}, tmp_path / "turn.kvc")
    assert (found.kind, found.reason) == ("equal", "")


# Each transform, where its order in memory is not that of its axes.
ORDERS = {
    "fft": lambda x: fft.fft(x, dim=1).imag,
    "ifft": lambda x: fft.ifft(whole(x), dim=0).real,
    "rfft, irfft": lambda x: (fft.rfft(x, dim=0).real, fft.irfft(x, dim=1)),
    "hfft, ihfft": lambda x: (fft.hfft(whole(x), 3, 1), fft.ihfft(x, dim=0).real),
    "fftn": lambda x: fft.fftn(x, dim=(0, 2)).real,
    "ifft2": lambda x: fft.ifft2(whole(x), dim=(1, 0)).real,
    "rfftn": lambda x: fft.rfftn(x, dim=(2, 1)).real,
    "irfftn": lambda x: fft.irfftn(whole(x), dim=(0, -1)),
    "irfft2, input=": lambda x: fft.irfft2(input=whole(x), s=(3, 4), dim=(0, 1)),
    "hfftn, ihfftn": lambda x: (fft.hfftn(whole(x), dim=(1, 0)), fft.ihfftn(x, dim=(0, 2)).real),
    "of a transposed tensor": lambda x: fft.fft(x.mT.contiguous().mT, dim=0).real,
}  # fmt: skip


def written_through(transforms):
    """What a transform makes, after writes through its rows, or into a copy."""

    def code(x: Tensor) -> tuple[Tensor, ...]:
        made = transforms(x)
        made = made if isinstance(made, tuple) else (made,)
        for each in made:
            each.reshape(-1)[:5].mul_(100)
            each.flatten(1)[:, 1:3].add_(1)
        return made

    return code


@only(name=["irfftn", "ifft2", "hfftn, ihfftn"])
@pytest.mark.parametrize("name", ORDERS)
def test_writes_meet_the_memory_that_they_meet_in_torch(name, tmp_path):
    code = Applied(written_through(ORDERS[name]))
    found = outcome(code, (X,), {}, tmp_path / "written.kvc")
    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("length", [400, 2047, 2048])
def test_long_transforms_are_as_close_as_sums_of_products(tmp_path, length):
    x = torch.randn(2, length)
    model, methods = Applied(lambda x: pairs(fft.rfft(x))), [Method("forward", (x,))]
    compile_program(model, methods).save(tmp_path / "long.kvc")
    with load(tmp_path / "long.kvc") as program:
        found = torch.as_tensor(program.forward(x.numpy()))
    exact = pairs(fft.rfft(x.double())).float()
    assert float((found - exact).abs().max() / exact.abs().max()) < 3e-6


def test_batches_and_windows_may_be_of_any_number(tmp_path):
    window = torch.hann_window(8)
    model = Applied(
        lambda x: torch.stft(x, 8, 4, window=window, return_complex=True).abs()
    )
    dynamic = {"x": {0: Dim("batch", 2, 5), 1: Dim("samples", 16, 64)}}
    methods = [Method("forward", args=(torch.randn(3, 32),), dynamic=dynamic)]
    compile_program(model, methods).save(tmp_path / "stft.kvc")
    with load(tmp_path / "stft.kvc") as program:
        for shape in ((3, 32), (2, 16), (5, 61)):
            x = torch.randn(shape)
            found = torch.as_tensor(program.forward(x.numpy()))
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_any_number_of_windows_goes_back(tmp_path):
    window = torch.hann_window(8)
    model = Applied(lambda x: torch.istft(whole(x), 8, 4, window=window))
    dynamic = {"x": {0: Dim("batch", 2, 5), 2: Dim("windows", 3, 9)}}
    methods = [Method("forward", args=(torch.randn(3, 5, 4),), dynamic=dynamic)]
    compile_program(model, methods).save(tmp_path / "istft.kvc")
    with load(tmp_path / "istft.kvc") as program:
        for shape in ((3, 5, 4), (2, 5, 9), (5, 5, 3)):
            x = torch.randn(shape)
            found = torch.as_tensor(program.forward(x.numpy()))
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_windows_that_leave_samples_at_zero_are_an_error_as_in_torch(tmp_path):
    model = Applied(
        lambda x: torch.istft(whole(x), 8, 4, window=torch.hann_window(8), center=False)
    )
    x = torch.randn(1, 5, 4)
    compile_program(model, [Method("forward", (x,))]).save(tmp_path / "istft.kvc")

    with pytest.raises(RuntimeError, match="window overlap add min"):
        model(x)
    with (
        load(tmp_path / "istft.kvc") as program,
        pytest.raises(KernelFailed, match=r"test_fourier.*window overlap add min"),
    ):
        program.forward(x.numpy())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.istft(whole(x), 8, 4, window=torch.ones(1)),
        lambda x: torch.stft(
            x.flatten(), 8, 4, window=torch.ones(1), return_complex=True
        ).abs(),
    ],
)
def test_a_window_of_another_width_is_an_error_as_in_torch(function):
    x = torch.randn(3, 5, 4)
    with pytest.raises(RuntimeError, match="window"):
        function(x)

    with pytest.raises(CaptureError, match="window"):
        compile_program(Applied(function), [Method("forward", (x,))])


@pytest.mark.parametrize("size", [4, 2049])
def test_a_length_that_is_not_fixed_or_too_large_is_refused(size):
    dynamic = {"x": {0: Dim("length", 2, 8)}} if size == 4 else {}
    methods = [Method("forward", args=(torch.randn(size),), dynamic=dynamic)]
    with pytest.raises(CaptureError, match="a fixed length of at most 2048"):
        compile_program(Applied(lambda x: fft.rfft(x).abs()), methods)
