"""What a body hands back through a dropout, and is then written, is refused."""

import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan

from kvc.compiler import Method, compile_program
from kvc.schema.errors import CaptureError

DROP = nn.Dropout().eval()
P, X = torch.tensor(True), torch.arange(12.0).reshape(3, 4)
START = torch.zeros((), dtype=torch.int64)


def handed_back(x: Tensor) -> Tensor:
    return torch.cond(P, DROP, lambda x: DROP(x * 2), (x,))


def into_the_result(x: Tensor) -> list[Tensor]:
    held = x * 1
    handed_back(held).add_(1)
    return [held * 1]


def into_what_it_takes(x: Tensor) -> list[Tensor]:
    held = x * 1
    result = handed_back(held)
    held[0] += 1
    return [result * 1]


def into_an_argument(x: Tensor) -> Tensor:
    return handed_back(x).add_(1)


def through_a_dropout_before(x: Tensor) -> list[Tensor]:
    held = x * 1
    handed_back(DROP(held)).add_(1)
    return [held * 1]


def from_branch_to_branch(x: Tensor) -> list[Tensor]:
    held = x * 1
    handed_back(handed_back(held)).add_(1)
    return [held * 1]


def from_within_a_branch(x: Tensor) -> list[Tensor]:
    held = x * 1
    torch.cond(P, handed_back, lambda x: x * 2, (held,)).add_(1)
    return [held * 1]


def in_a_branch(x: Tensor) -> Tensor:
    def body(x: Tensor) -> Tensor:
        held = x * 1
        handed_back(held).add_(1)
        return held * 1

    return torch.cond(P, body, lambda x: x * 2, (x,))


def copied_back_in_part(x: Tensor) -> list[Tensor]:
    held = x * 1
    result = handed_back(held)
    held[:2].copy_(result[1:])
    return [result * 1]


def of_two_results(x: Tensor) -> list[Tensor]:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        held = x * 1
        return held, DROP(held)

    one, other = torch.cond(P, body, lambda x: (x * 1, x * 2), (x,))
    one.add_(1)
    return [other * 1]


def of_a_loop(x: Tensor) -> list[Tensor]:
    held = x * 1
    _, result = torch.while_loop(
        lambda i, x: i < 2, lambda i, x: (i + 1, DROP(x)), (START, held)
    )
    result.add_(1)
    return [held * 1]


def of_a_scan(x: Tensor) -> list[Tensor]:
    held = x * 1
    carried, _ = scan(lambda c, x: (DROP(c), x * 2), held[0], held)
    carried.add_(1)
    return [held * 1]


REFUSED = [into_the_result, into_what_it_takes, into_an_argument, of_two_results]
REFUSED += [through_a_dropout_before, from_branch_to_branch, from_within_a_branch]
REFUSED += [copied_back_in_part, in_a_branch, of_a_loop, of_a_scan]


@pytest.mark.parametrize("code", REFUSED)
def test_a_write_that_may_reach_both_is_refused(code):
    with pytest.raises(CaptureError, match=r"return \.clone\(\) of that") as caught:
        compile_program(Applied(code), [Method("forward", args=(X,))])
    assert "test_handed_back:" in caught.value.facts["place"]


def nothing_else_is_read(x: Tensor) -> Tensor:
    return handed_back(x * 1).add_(1)


def made_in_the_body(x: Tensor) -> list[Tensor]:
    held = x * 1
    result = torch.cond(P, lambda x: DROP(x * 3), lambda x: x * 2, (held,))
    result.add_(1)
    return [held * 1, result * 1]


def stacked(x: Tensor) -> list[Tensor]:
    held = x * 1
    steps = scan(lambda c, x: (c + 1, DROP(x)), held[0], held)[1]
    mapped = map_over(lambda x: DROP(x), held)
    steps.add_(1)
    mapped.add_(2)
    return [held * 1, steps * 1, mapped * 1]


def copied_back(x: Tensor) -> list[Tensor]:
    held = x * 1
    result = handed_back(held)
    held.copy_(result)
    return [held * 1, result * 1]


@pytest.mark.parametrize(
    "code", [copied_back, nothing_else_is_read, made_in_the_body, stacked]
)
def test_other_writes_are_compiled(code, tmp_path):
    found = outcome(Applied(code), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_many_branches_in_a_row_take_little_time():
    def code(x: Tensor) -> Tensor:
        for _ in range(24):
            x = torch.cond(P, DROP, DROP, (x,))
        return x

    compile_program(Applied(code), [Method("forward", args=(X,))])
