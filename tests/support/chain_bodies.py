"""Branches, loops and scans in random chains: bodies whose steps write.

In: the drawer of a method (`chain_drawer`). Out: one more step in it, and names of its
results. With `own`, a body writes only copies that it makes; else also what it captures
or is given, which torch's own control flow refuses.
"""

from collections.abc import Sequence

from chain_drawer import Drawer


def add_body(drawer: Drawer, kind: str, own: bool) -> bool:
    """Add a branch, a loop or a scan; tell whether eager takes it."""
    return _KINDS[kind](drawer, own)


def _body(drawer, head, operands, parameters, own, returned) -> str:
    """Draw a body; `head` is its first line, `returned` a format of what it returns."""
    total = drawer.new_name("s")
    copies = [f"{one} = {one}.clone()" for one in parameters] if own else []
    pairs = zip(parameters, operands, strict=True)
    zero = f"{total} = torch.zeros(())"
    first = [*(f"{one} = {of}" for one, of in pairs), *copies, zero]
    inner = drawer.within(first, total, own)
    inner.names += parameters
    inner.rounds(drawer.chance.choice((1, 1, 2)))
    drawer.undefined |= inner.undefined
    drawer.outside |= inner.outside
    lines = [*copies, zero, *inner.lines, f"return {returned.format(total=total)}"]
    return "\n    ".join((head, *lines))


def _operand(drawer: Drawer, rank: int = 0) -> str:
    """Return a tensor of at least so many axes, none of them empty."""
    known = [one for one in drawer.all_named() if 0 not in one.sizes]
    return drawer.chance.choice([one.name for one in known if len(one.sizes) >= rank])


def _given(drawer: Drawer, operand: str, own: bool) -> str:
    """Return an operand, often a copy: torch takes none that share memory."""
    return f"{operand}.clone()" if own and drawer.chance.random() < 0.7 else operand


def _add_cond(drawer: Drawer, own: bool) -> bool:
    operands = list(dict.fromkeys(_operand(drawer) for _ in range(2)))
    parameters = [drawer.new_name("a") for _ in operands]
    returned = "".join(f"dense({one}), " for one in parameters) + "{total}"
    names = [drawer.new_name("f") for _ in "ab"]
    definitions = [
        _body(
            *(drawer, f"def {name}({', '.join(parameters)}):"),
            *(operands, parameters, own, returned),
        )
        for name in names
    ]
    results = [drawer.new_name("o") for _ in (*operands, "")]
    given = "".join(_given(drawer, one, own) + ", " for one in operands)
    call = f"cond(p, {names[0]}, {names[1]}, ({given}))"
    return _added(drawer, definitions, f"{', '.join(results)} = {call}", results)


def _add_while(drawer: Drawer, own: bool) -> bool:
    operand, name = _operand(drawer), drawer.new_name("f")
    i, total, parameter = (drawer.new_name(letter) for letter in "iza")
    copy = "dense" if own else ""
    start = f"{copy}({operand})"
    returned = f"{i} + 1, {total} + {{total}}, {parameter}.clone()"
    head = f"def {name}({i}, {total}, {parameter}):"
    body = _body(drawer, head, [operand], [parameter], own, returned)
    results = [drawer.new_name("o") for _ in "ab"]
    zeros = "torch.zeros((), dtype=torch.int64), torch.zeros(())"
    call = f"while_loop(lambda i, z, a: i < n, {name}, ({zeros}, {start}))"
    # Without a turn the result is the operand itself, or a copy; here always a copy.
    copied = [f"{one} = {one}.clone()" for one in results]
    line = "\n".join((f"_, {', '.join(results)} = {call}", *copied))
    return _added(drawer, [body], line, results)


def _add_scan(drawer: Drawer, own: bool) -> bool:
    operand, xs, name = _operand(drawer), _operand(drawer, 1), drawer.new_name("f")
    parameters = [drawer.new_name("a") for _ in "ab"]
    copy = "dense" if own else ""
    returned = f"{parameters[0]}.clone(), dense({parameters[1]}) * 2"
    head = f"def {name}({', '.join(parameters)}):"
    body = _body(drawer, head, [operand, f"{xs}[0]"], parameters, own, returned)
    results = [drawer.new_name("o") for _ in "ab"]
    call = f"scan({name}, {copy}({operand}), {_given(drawer, xs, own)}, dim=0)"
    return _added(drawer, [body], f"{', '.join(results)} = {call}", results)


_KINDS = {"cond": _add_cond, "while": _add_while, "scan": _add_scan}


def _added(
    drawer: Drawer, definitions: Sequence[str], call: str, results: Sequence[str]
) -> bool:
    good = drawer.attempt("\n".join((*definitions, call)))
    if good:
        drawer.names += results
    return good
