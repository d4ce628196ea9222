"""Sound in chunks of any length: equal to the whole, and each state is written once."""

from copy import deepcopy

import pytest
import torch
from streaming_audio import (
    CHANNELS,
    CausalStack,
    RecurrentDenoiser,
    StreamingEncoder,
)

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.tools.reports.methods import describe_methods

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


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch.manual_seed(0)
    model = StreamingEncoder().eval()
    path = tmp_path_factory.mktemp("encoder") / "model.kvc"
    chunk = torch.randn(1, CHANNELS, model.STEP)
    compile_program(model, [Method("forward", (chunk,))], "cpu_fp32").save(path)
    return model, path


@pytest.mark.parametrize("reference", [False, True])
def test_past_frames_that_stay_where_they_lie_give_the_whole(encoder, reference):
    model, path = encoder
    sound = torch.randn(1, CHANNELS, 15 * model.STEP)
    with torch.no_grad():
        whole = model.whole(sound)

    with load(path, reference=reference) as program, program.session() as session:
        for _ in range(2):
            heard = [
                torch.as_tensor(session.call("forward", x))
                for x in sound.split(model.STEP, -1)
            ]
            torch.testing.assert_close(
                torch.cat(heard, -1), whole, rtol=1e-5, atol=1e-5
            )
            session.reset()


def test_past_frames_are_not_copied_and_nothing_is_left_to_pytorch(encoder):
    _, path = encoder
    with load(path) as program:
        made = program._engine.program
    (method,) = made.methods
    assert describe_methods(made)[0].left == {}
    (block,) = method.blocks  # all of the method, natively
    assert len(block.updates) == 4
    assert not any(update.copies for update in (*method.updates, *block.updates))
