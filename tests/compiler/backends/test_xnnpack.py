import pytest
import torch

from kvc.compiler import Method, compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods
from kvc.schema.codec import decode_payload
from kvc.schema.ops import DELEGATE

LAYERS = 3
CONFIG = DecoderConfig(
    vocab=16, dim=16, layers=LAYERS, heads=4, kv_heads=2, ffn=32, capacity=16
)


@pytest.fixture(scope="module")
def compiled():
    torch.manual_seed(0)
    model = Decoder(CONFIG).eval()
    return compile_program(model, decoder_methods(CONFIG, 8), "xnnpack_q8").program


def test_a_decoder_makes_one_call_a_layer_and_one_more(compiled):
    for method in compiled.methods:
        calls = [s for s in method.graph.instructions if s.op == DELEGATE]
        assert len(calls) == LAYERS + 1


def test_no_linear_stays_outside(compiled):
    ops = {s.op for method in compiled.methods for s in method.graph.instructions}
    assert not ops & {"aten::linear", "kvc::linear_qd8", "kvc::quantize_rows"}


def test_cache_writes_and_attention_stay_outside(compiled):
    for method in compiled.methods:
        ops = [s.op for s in method.graph.instructions]
        assert ops.count("kvc::cache_update") == 2 * LAYERS
        assert ops.count("kvc::attention") == LAYERS


def test_both_methods_read_the_same_weights(compiled):
    prefill, decode = (
        {i for d in compiled.delegates if d.method == m for i in d.names}
        for m in (0, 1)
    )
    assert prefill == decode


def test_linears_of_one_input_share_its_quantization(compiled):
    payloads = [decode_payload(d.payload, "") for d in compiled.delegates]
    ops = [s.op for p in payloads for s in p.graph.instructions]
    assert ops.count("kvc::linear_qd8") == 2 * (7 * LAYERS + 1)
    assert ops.count("kvc::quantize_rows") == 2 * (4 * LAYERS + 1)


def test_a_model_without_linears_is_left_alone():
    forward = Method("forward", args=(torch.ones(2, 4),))
    bundle = compile_program(torch.nn.RMSNorm(4), [forward], "xnnpack_q8")
    assert bundle.program.delegates == ()


def test_the_compiler_takes_exactly_the_ops_that_the_runtime_accepts():
    """The two halves may not import each other, so nothing else ties their lists."""
    from kvc.compiler.backends import xnnpack as ahead_of_time
    from kvc.runtime.delegates import xnnpack as run_time

    assert ahead_of_time._OPS == run_time.ACCEPTED
