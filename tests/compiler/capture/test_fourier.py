# ruff: noqa: E501  texts and tables read best unbroken
"""Fourier transforms of fixed lengths, against eager."""

import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError

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
    "double": lambda x: pairs(fft.rfft(x.double())),
    "shifted": lambda x: pairs(fft.fftshift(fft.fft(x))),
    "a spectrogram": lambda x: torch.stft(x.reshape(3, 20), 8, 2, window=torch.hann_window(8), return_complex=True).abs().pow(2),
    "windows shorter than the transform": lambda x: pairs(x.reshape(-1).stft(8, 3, 6, torch.hann_window(6), normalized=True, return_complex=True)),
    "all bins, not centred": lambda x: pairs(torch.stft(x.reshape(3, 20), 8, center=False, onesided=False, return_complex=True)),
    "centred by zeros": lambda x: pairs(torch.stft(x.reshape(3, 20), 6, pad_mode="constant", return_complex=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*window was not provided")
def test_it_equals_eager(name, tmp_path):
    found = outcome(Applied(CASES[name]), (X,), {}, tmp_path / "function.kvc")

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


@pytest.mark.parametrize("size", [4, 2049])
def test_a_length_that_is_not_fixed_or_too_large_is_refused(size):
    dynamic = {"x": {0: Dim("length", 2, 8)}} if size == 4 else {}
    methods = [Method("forward", args=(torch.randn(size),), dynamic=dynamic)]
    with pytest.raises(CaptureError, match="a fixed length of at most 2048"):
        compile_program(Applied(lambda x: fft.rfft(x).abs()), methods)
