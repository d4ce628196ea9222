from dataclasses import replace

import pytest
from sample_programs import sample_payload, sample_program

from kvc.schema.codec import decode, encode
from kvc.schema.errors import FormatError
from kvc.schema.model import Instruction, Ref
from kvc.schema.types import Symbol, TensorType
from kvc.schema.verify import state_effects, verify_payload, verify_program

P = sample_program()
DELEGATE = P.delegates[0]
PAYLOAD = sample_payload()


def refuse(payload, text):
    with pytest.raises(FormatError, match=text):
        verify_payload(payload, P, DELEGATE, "m.kvc")


def test_the_sample_payload_passes():
    verify_payload(PAYLOAD, P, DELEGATE, "m.kvc")


def test_a_decoded_program_passes():
    verify_program(decode(encode(P), "x"), "x", thorough=True)


def test_a_payload_of_another_backend_is_refused():
    refuse(replace(PAYLOAD, backend="other"), "made for 'other'")


def test_symbols_are_the_program_s():
    refuse(replace(PAYLOAD, symbols=(Symbol("seq", 1, 99),)), "not the program's")
    refuse(replace(PAYLOAD, symbols=()), "undeclared")


def test_data_is_what_the_delegate_may_use():
    refuse(replace(PAYLOAD, names=("weight",)), "'weight' as")
    refuse(
        replace(PAYLOAD, types=(TensorType(P.names[0].type.dtype, (4,)),)), "'bias' as"
    )
    refuse(replace(PAYLOAD, types=()), "'bias'|no named data|among")
    refuse(replace(PAYLOAD, names=("bias", "bias"), types=PAYLOAD.types * 2), "twice")


def test_a_payload_calls_no_delegate_and_has_the_call_s_types():
    graph = PAYLOAD.graph
    call = Instruction("kvc::delegate", (0, (Ref(0),)), (2,))
    refuse(
        replace(PAYLOAD, graph=replace(graph, instructions=(call,))), "calls a delegate"
    )
    refuse(replace(PAYLOAD, graph=replace(graph, outputs=())), "outputs differ")


def test_a_payload_touches_no_state():
    values = P.methods[1].graph.values
    graph = PAYLOAD.graph
    changed = replace(graph, values=(*graph.values, values[3]))
    refuse(replace(PAYLOAD, graph=changed), "no state 0")


def test_effects_are_what_the_graph_does():
    graph = P.methods[1].graph
    assert state_effects(graph) == ((0, 1), (0, 1))
    assert state_effects(replace(graph, instructions=())) == ((), ())
    assert state_effects(replace(graph, instructions=graph.instructions[-1:])) == (
        (),
        (1,),
    )
