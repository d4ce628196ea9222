"""Sound in chunks of any length: equal to the whole, and each state is written once."""

from copy import deepcopy

import pytest
import torch
from streaming_audio import CHANNELS, CausalStack, RecurrentDenoiser

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load

MODELS = {"recurrent": (RecurrentDenoiser, 1), "convolution": (CausalStack, 2)}
CUTS = (5, 1, 9, 2, 13)


@pytest.fixture(scope="module", params=MODELS)
def streaming(request, tmp_path_factory):
    made, axis = MODELS[request.param]
    torch.manual_seed(0)
    model = made().eval()
    shape = [1, CHANNELS, CHANNELS]
    shape[axis] = 4
    method = Method(
        "forward", (torch.randn(shape),), dynamic={"x": {axis: Dim("steps", 1, 32)}}
    )
    # A state that becomes a view of a longer value is stored by a copy, of just that.
    kept = sum(buffer.nbytes for buffer in model.buffers())
    path = tmp_path_factory.mktemp("audio") / "model.kvc"
    compile_program(model, [method], max_copy_bytes={"forward": kept}).save(path)
    shape[axis] = sum(CUTS)
    sound = torch.randn(shape)
    with torch.no_grad():
        whole = deepcopy(model)(sound)
    return path, axis, sound, whole


@pytest.mark.parametrize("cuts", [CUTS, CUTS[::-1], (sum(CUTS),), (1,) * 8 + (22,)])
def test_chunks_are_equal_to_the_whole(streaming, cuts):
    path, axis, sound, whole = streaming

    with load(path) as program, program.session() as session:
        heard = [
            torch.as_tensor(session.call("forward", x)) for x in sound.split(cuts, axis)
        ]

    torch.testing.assert_close(torch.cat(heard, axis), whole, rtol=1e-5, atol=1e-6)


def test_each_session_hears_its_own_sound(streaming):
    path, axis, sound, whole = streaming
    first, rest = sound.split((5, sum(CUTS) - 5), axis)

    with load(path) as program, program.session() as one, program.session() as other:
        one.call("forward", first)
        other.call("forward", -first)
        found = torch.as_tensor(one.call("forward", rest))

    expected = whole.split((5, sum(CUTS) - 5), axis)[1]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
