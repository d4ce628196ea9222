import pytest

from kvc.schema.verify.trees import check_call_tree, check_tree


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[" * 100_000,
        "1",
        "true",
        "null",
        '{"tuple":0}',
        '{"set":[]}',
        '{"tuple":[0,0]}',
        '{"tuple":[1,0]}',
        '{"constant":[]}',
        '{"constant":1,"tuple":[]}',
        '{"dict":[0]}',
        '{"dict":[["a",0],["a",1]]}',
        '{"dict":[[1,0]]}',
        '{"scalar":1}',
        '{"scalar":true}',
        '{"scalar":[0]}',
        '{"scalar":{"scalar":0}}',
        '{"list":[{"scalar":0},{"scalar":0}]}',
        '{"list":[' * 40 + "0" + "]}" * 40,
        '{"dataclass":[]}',
        '{"dataclass":["A"]}',
        '{"dataclass":["A",0]}',
        '{"dataclass":["A",[0]]}',
        '{"dataclass":[0,[]]}',
        '{"dataclass":["",[]]}',
        '{"dataclass":["A B",[]]}',
        '{"dataclass":["class",[]]}',
        '{"dataclass":["A",[["x",0],["x",1]]]}',
        '{"dataclass":["A",[["__class__",0]]]}',
        '{"namedtuple":["A",[["_make",0]]]}',
        '{"namedtuple":["A",[["x=1",0]]]}',
        '{"namedtuple":["A",[["x",1]]]}',
        '{"mapping":["A",[["\\ufb01",0]]]}',
        '{"mapping":["A",[["x",{"set":[]}]]]}',
        f'{{"mapping":["A",[["{"x" * 129}",0]]]}}',
        f'{{"mapping":["A",{[[f"x{i}", i] for i in range(257)]}]}}'.replace("'", '"'),
        '{"dataclass":["A",[["x",' * 40 + "0" + "]]]}" * 40,
    ],
)
def test_a_text_that_is_no_tree_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        check_tree(text)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "{}",
        '{"parameters":["x"],"arguments":0}',
        '{"parameters":["x"],"arguments":[["x",{"scalar":0}]]}',
        '{"parameters":[1],"arguments":[]}',
        '{"parameters":["x"],"arguments":[["y",0]]}',
        '{"parameters":["x","x"],"arguments":[["x",0]]}',
        '{"parameters":["x","y"],"arguments":[["y",0],["x",1]]}',
    ],
)
def test_a_text_that_is_no_call_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        check_call_tree(text)


def test_records_of_plain_names_are_trees():
    text = '{"dataclass":["_Cache",[["k",0],["v",{"namedtuple":["P",[["x",1]]]}]]]}'
    assert check_tree(text) == (2, [])


def test_results_may_be_numbers():
    assert check_tree('{"list":[0,{"scalar":1}]}') == (2, [1])
