"""What takes the place of transformers' own: for one model at a time."""

import threading

from hf_models import build
from transformers.models.qwen3_next import modeling_qwen3_next as module

from kvc.compiler.hugging_face.replacing import using_kvc

RULE = "torch_chunk_gated_delta_rule"


def test_another_thread_waits_until_functions_of_a_module_are_put_back() -> None:
    models, own = [build("qwen3_next") for _ in range(2)], getattr(module, RULE)
    begun, found = threading.Event(), list[bool]()

    def run() -> None:
        with using_kvc(models[1]):
            found.append(getattr(module, RULE) is not own)
            begun.set()

    thread = threading.Thread(target=run)
    with using_kvc(models[0]):
        assert getattr(module, RULE) is not own
        thread.start()
        assert not begun.wait(0.2)
    thread.join()
    assert found == [True]
    assert getattr(module, RULE) is own
