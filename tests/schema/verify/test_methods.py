from dataclasses import replace

import pytest
from growing_programs import growing_program
from hand_built import SEQ, adds, program
from sample_programs import declared, sample_program
from stateful_programs import SYMBOLS, Builder

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, FormatError
from kvc.schema.graph import Access, AccessMode, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.model import Advance, StateKind, Update
from kvc.schema.types import Affine, Quotient, TensorType, add_dims, affine
from kvc.schema.verify import verify_program

P, GROWING = sample_program(), growing_program()
PREFILL, DECODE = P.methods
GROW, RESTART = GROWING.methods
I64, F32 = DType.INT64, DType.FLOAT32
# Instructions of decode: 1 writes the cache in place, 6 copies over the position.
IN_PLACE, COPIED = DECODE.updates


def refuse(program, text, error=BadProgram):
    with pytest.raises(error, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def refuse_decode(text, **changes):
    refuse(replace(P, methods=(PREFILL, replace(DECODE, **changes))), text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "decode"}, "twice"),
        ({"name": "a b\n"}, "printed"),
        ({"role": "other"}, "role 'other'"),
        ({"role": "prefill"}, r"takes \(float32\[1, seq, 8\]\) and gives"),
        ({"input_names": ()}, "names and inputs"),
        ({"input_names": ("",)}, "empty"),
        ({"input_tree": "["}, "method 'prefill'"),
        ({"input_tree": '{"parameters":[],"arguments":[]}'}, "0 leaves for 1 inputs"),
        ({"output_tree": "0"}, "1 leaves, 2 outputs"),
        ({"output_tree": "{}"}, "unknown part"),
        ({"output_tree": '{"list":[{"scalar":0},1]}'}, "as a number"),
        ({"reads": ()}, r"it reads the states \(0, 1\)"),
        ({"writes": (0,)}, r"it writes the states \(0, 1\)"),
    ],
)
def test_a_bad_method_is_refused(change, text):
    refuse(replace(P, methods=(replace(PREFILL, **change), DECODE)), text)


def with_role(role: str, taken: TensorType, given: TensorType, tree="0", several=False):
    """Return a program of a method that ignores its tokens and gives ones."""
    b = Builder()
    tokens, logits = b.scratch(taken), b.scratch(given)
    b.step("aten::full", (given.dims, 1.0, given.dtype), logits)
    made = b.method("all", {"tokens": tokens}, [logits], role=role)
    methods = [replace(made, output_tree=tree)]
    if several:
        methods += [replace(made, name="more")]
    return program(methods, symbols=[SYMBOLS["seq"]])[0]


SIGNATURES = {
    "prefill": ((1, SEQ), (1, 8)),
    "decode": ((1, 1), (1, 8)),
    "prefill_all": ((1, SEQ), (1, SEQ, 8)),
}


@pytest.mark.parametrize("role", SIGNATURES)
def test_a_role_promises_tokens_in_and_logits_out(role):
    taken, given = SIGNATURES[role]
    tokens, logits = TensorType(I64, taken), TensorType(F32, given)
    verify_program(with_role(role, tokens, logits), "m.kvc")
    for other in (TensorType(DType.INT32, taken), TensorType(I64, (SEQ, *taken))):
        refuse(with_role(role, other, logits), f"of the role {role} it takes")
    for shape in ((2, *given[1:]), given[:-1], (*given, 1)):
        wrong = TensorType(F32, shape)
        refuse(with_role(role, tokens, wrong), f"of the role {role} it takes")
    wrong = TensorType(DType.FLOAT16, given)
    refuse(with_role(role, tokens, wrong), f"of the role {role} it takes")
    nested = with_role(role, tokens, logits, tree='{"list":[0]}')
    refuse(nested, f"of the role {role} it takes")


def test_a_decode_takes_one_token():
    several = with_role("decode", TensorType(I64, (1, SEQ)), TensorType(F32, (1, 8)))
    refuse(several, "of the role decode it takes")


def test_one_method_has_the_role_decode():
    tokens, logits = TensorType(I64, (1, 1)), TensorType(F32, (1, 8))
    refuse(with_role("decode", tokens, logits, several=True), "several decode: .*more")


def test_a_method_declares_what_it_does_through_new_ops():
    refuse(replace(GROWING, methods=(replace(GROW, reads=()), RESTART)), "it reads")
    refuse(replace(GROWING, methods=(GROW, replace(RESTART, reads=(0,)))), "it reads")
    refuse(replace(GROWING, methods=(GROW, replace(RESTART, writes=()))), "it writes")


@pytest.mark.parametrize(
    ("advance", "text"),
    [
        (-1, "the dim -1 can be -1"),
        (affine(-2, {"seq": 1}), "can be -1"),
        (affine(0, {"other": 1}), "undeclared"),
        (affine(0, {}, {("other", "seq"): 1}), "undeclared"),
        (None, "it writes a counter without an advance"),
    ],
)
def test_a_bad_advance_is_refused(advance, text):
    refuse_decode(text, advances=() if advance is None else adds(advance))


@pytest.mark.parametrize(
    ("advance", "text"),
    [
        (affine(0, {"seq": 1}, {("capacity", "seq"): -1}), "can be -"),
        (Affine(0, (), ((("capacity", "seq"), 0),)), "canonical"),
        (Affine(0, (), ((("seq", "capacity"), 1),)), "canonical"),
        (Affine(0, (), ((("seq",), 1),)), "canonical"),
        (Affine(0, (), ((("seq", "seq"), 1),)), "canonical"),
        (Affine(0, (), ((("capacity", "seq"), 1),) * 2), "canonical"),
    ],
)
def test_a_bad_product_of_sizes_is_refused(advance, text):
    refuse(
        replace(GROWING, methods=(replace(GROW, advances=adds(advance)), RESTART)), text
    )


def divided(of, by):
    """Return a size that only `Quotient` makes, and not `floor_divide`."""
    return Affine(0, ((Quotient(of, by), 1),))


@pytest.mark.parametrize(
    ("advance", "text"),
    [
        (divided(SEQ, 1), "canonical"),
        (divided(Affine(0, (("seq", 2),)), 2), "canonical"),
        (divided(Affine(0, (("seq", 3),)), 2), "canonical"),
        (divided(Affine(2, (("seq", 1),)), 2), "canonical"),
        (divided(Affine(-1, (("seq", 1),)), 2), "canonical"),
        (divided(divided(SEQ, 2), 3), "canonical"),
        (divided(Affine(1, ()), 2), "canonical"),
        (Affine(0, (("seq", 1), (Quotient(SEQ, 2), 1))), "canonical"),
        (Affine(0, ((Quotient(SEQ, 2), 1), (Quotient(SEQ, 2), 1))), "canonical"),
        (divided(affine(0, {"other": 1}), 2), "undeclared"),
        (add_dims(divided(SEQ, 3), -1), "can be -1"),
        (add_dims(divided(SEQ, 2), SEQ, -1), "can be -"),
        (divided(affine(0, {"seq": 2**40 - 1}), 2**40), "limit"),
    ],
)
def test_a_bad_quotient_of_sizes_is_refused(advance, text):
    refuse(
        replace(GROWING, methods=(replace(GROW, advances=adds(advance)), RESTART)),
        text,
        FormatError,
    )


def test_an_advance_may_be_too_large():
    refuse(
        replace(P, methods=(replace(PREFILL, advances=adds(2**40)),)),
        "limit",
        FormatError,
    )


@pytest.mark.parametrize("numbers", [(1,), (0, 1), (0, 0), (1, 0)])
def test_a_method_advances_each_of_the_cursors_once_in_order(numbers):
    advances = tuple(Advance(number, 1) for number in numbers)
    refuse_decode("it advances the cursors", advances=advances)


def test_without_a_cursor_nothing_advances():
    cache = replace(P.states[0], cursor=None)
    number = replace(P.states[1], kind=StateKind.PLAIN, cursor=None)
    program = replace(P, states=(cache, number), cursors=())
    refuse(program, r"it advances the cursors \[0\]")


def with_start_at(graph: Graph, value: int) -> Graph:
    """Return the graph of decode whose write begins at another value."""
    steps = list(graph.instructions)
    arguments = list(steps[1].arguments)
    arguments[2] = Ref(value)
    steps[1] = replace(steps[1], arguments=tuple(arguments))
    return replace(graph, instructions=tuple(steps))


def test_a_method_that_advances_writes_the_position():
    graph = with_start_at(DECODE.graph, 11)
    graph = replace(graph, instructions=graph.instructions[:6])
    place = graph.values[-1]
    values = (*graph.values[:11], place)
    idle = replace(
        DECODE, graph=replace(graph, values=values), writes=(0,), updates=(IN_PLACE,)
    )
    text = "it advances a cursor that it does not write"
    refuse(replace(P, methods=(PREFILL, idle)), text)


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ((), r"verdicts on \(\), its writes in place are \(1, 6\)"),
        ((IN_PLACE,), r"verdicts on \(1,\)"),
        ((COPIED,), r"verdicts on \(6,\)"),
        ((COPIED, IN_PLACE), r"verdicts on \(6, 1\)"),
        ((IN_PLACE, IN_PLACE, COPIED), r"verdicts on \(1, 1, 6\)"),
        ((Update(0, "", ()), IN_PLACE, COPIED), r"verdicts on \(0, 1, 6\)"),
        ((IN_PLACE, Update(99, "", ())), r"verdicts on \(1, 99\)"),
    ],
)
def test_every_write_in_place_has_one_verdict(updates, text):
    refuse_decode(text, updates=updates)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Update(6, "", (6,)), r"reason '' for copies \(6,\)"),
        (Update(6, "why", ()), r"reason 'why' for copies \(\)"),
        (Update(6, "a\n", (6,)), "cannot be printed"),
        (Update(6, "x" * 257, (6,)), "longer than 256"),
        (Update(6, "why", (7,)), r"copies \(7,\)"),
        (Update(6, "why", (-1,)), r"copies \(-1,\)"),
        (Update(6, "why", (6, 6)), r"copies \(6, 6\)"),
        (Update(6, "why", (1,)), r"\['kvc::cache_update'\] copy nothing"),
        (Update(6, "why", (5, 6)), r"\['aten::add.Scalar'\] copy nothing"),
    ],
)
def test_a_bad_verdict_is_refused(update, text):
    refuse_decode(f"verdict on 6: .*{text}", updates=(IN_PLACE, update))


def test_copies_are_ascending_clones_copies_and_replacements():
    graph = DECODE.graph
    kind = TensorType(I64, (1,))
    clone = Instruction("aten::clone", (Ref(4),), (13,))
    place = Value(kind, Scratch(graph.scratch_nbytes, 8))
    changed = replace(
        graph,
        values=(*graph.values, place),
        instructions=(clone, *graph.instructions),
        scratch_nbytes=graph.scratch_nbytes + 64,
    )
    updates = (Update(2, "", ()), Update(7, "why", (0, 7)))
    method = declared(replace(DECODE, graph=changed, updates=updates))
    verify_program(replace(P, methods=(PREFILL, method)), "m.kvc", thorough=True)
    turned = replace(method, updates=(updates[0], Update(7, "why", (7, 0))))
    refuse(replace(P, methods=(PREFILL, turned)), r"copies \(7, 0\)")


@pytest.mark.parametrize(
    "accesses",
    [
        (),
        (Access(3, AccessMode.ANYWHERE),),
        (Access(3, AccessMode.SLOTS, 0, 1),),
        (Access(3, AccessMode.SLOTS, 1, 2),),
        (Access(4, AccessMode.SLOTS, 1, 1),),
        (Access(3, AccessMode.APPEND, 1, 1),),
        (Access(3, AccessMode.SLOTS, 1, 1),) * 2,
    ],
)
def test_a_write_says_what_it_writes_over(accesses):
    first, *rest = DECODE.updates
    assert first.accesses == (Access(3, AccessMode.SLOTS, 1, 1),)
    wrong = replace(DECODE, updates=(replace(first, accesses=accesses), *rest))
    with pytest.raises(BadProgram, match="makes other accesses"):
        verify_program(replace(P, methods=(PREFILL, wrong)), "m.kvc")
