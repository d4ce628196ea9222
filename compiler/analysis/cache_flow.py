"""Follow values through a method and the blocks that it runs.

In: a method, the values to start from, and a predicate that is true for nodes that pass
their first operand on to their results. Out: method or block name -> the values that
were reached in it. An operand of a control-flow node leads to the matching input of
each block, and an output of a block leads to the matching result of the control-flow
node.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import control_of
from kvc.schema.control import Control

Values = dict[int, Value]  # by id


@dataclass(frozen=True, slots=True)
class CacheFlow:
    """The rules by which a search follows values through nodes and control flow.

    Attributes:
        blocks: the blocks of the program, by number.
        leads: whether a node passes its first operand on to its results.
        every: whether a result of control flow is reached only if all blocks pass the
            value on; otherwise one block that passes it on is enough.
    """

    blocks: Mapping[int, Method]
    leads: Callable[[Node], bool]
    every: bool

    def values(self, method: Method, starts: Iterable[Value]) -> dict[str, Values]:
        """Return the values reached from `starts`, by method or block name."""
        known: Values = {value.id: value for value in starts}
        found = {method.name: known}
        for node in method.nodes:
            control = control_of(node)
            if control is not None:
                found |= self._through(control, known)
                known |= self._results(node, control, known, found)
            elif node.inputs and node.inputs[0].id in known and self.leads(node):
                known |= {value.id: value for value in node.outputs}
        return found

    def _through(self, control: Control[Value], known: Values) -> dict[str, Values]:
        found: dict[str, Values] = {}
        for number in control.blocks:
            block = self.blocks[number]
            found |= self.values(block, passed_inputs(control, block, known))
        return found

    def _results(
        self,
        node: Node,
        control: Control[Value],
        known: Values,
        found: Mapping[str, Values],
    ) -> Values:
        """Return the results of a control node that are reached from values in `known`.

        `found` are the values reached inside the node's blocks, by block name.
        """
        results: Values = {}
        makers = [
            self.blocks[number]
            for which, number in enumerate(control.blocks)
            if not control.tests(which)
        ]
        for j, result in enumerate(node.outputs):
            if control.is_loop and j >= control.carried:
                continue  # the stacked results of a scan
            comes = [block.outputs[j].id in found[block.name] for block in makers]
            if control.is_loop:  # a loop may run no iteration
                comes.append(control.operands[j].id in known)
            if (all if self.every else any)(comes):
                results[result.id] = result
        return results


def passed_inputs(
    control: Control[Value], block: Method, known: Mapping[int, object]
) -> list[Value]:
    """Return the inputs of a block whose operands are in `known`.

    An input that gets one slice of its operand in each iteration is left out.
    """
    return [
        block.inputs[i]
        for i, value in enumerate(control.operands)
        if value.id in known and not control.is_scanned(i)
    ]
