"""Tools of a request, and what the answer must be: `tools`, `tool_choice`.

In: the fields of a request. Out: the schemas that the chat template is given, and the
calls that the answer must be, if it must be any.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.frozen import frozen
from kvc.serving.models.replies import Forced
from kvc.serving.openai.fields import Fields

_MOST: Final = 1024
_FREE: Final = {"type": "object"}  # the arguments of a tool without a schema


@frozen
class Tools:
    """The tools of a request.

    Attributes:
        told: the schemas that the model is told of, None for none.
        forced: what the answer must be, None if the model may choose.
    """

    told: tuple[Mapping[str, object], ...] | None = None
    forced: Forced | None = None


def tools_in(fields: Fields) -> Tools:
    """Return the tools of a request.

    Raises:
        BadSetting: a tool is no function, or `tool_choice` names none of them.
    """
    listed = fields.listed("tools") or ()
    if len(listed) > _MOST:
        raise fields.bad("tools", f"at most {_MOST} tools")
    told = tuple(
        _tool(Fields(one, f"tools[{number}]")) for number, one in enumerate(listed)
    )
    schemas = {str(one["name"]): one.get("parameters") or _FREE for one in told}
    several = fields.flag("parallel_tool_calls") is not False
    choice = _choice(fields, schemas)
    if choice == "none" or not told:
        return Tools()
    whole = tuple({"type": "function", "function": one} for one in told)
    if choice == "auto":
        return Tools(whole)
    if choice != "required":
        schemas, several = {choice[1]: schemas[choice[1]]}, False
    return Tools(whole, Forced(schemas, several))


def _tool(fields: Fields) -> Mapping[str, object]:
    if fields.get("type") != "function":
        raise fields.bad("type", '"function", the only tools that this server has')
    function = fields.inner("function")
    if function is None:
        raise fields.bad("function", 'an object with "name"')
    function.needed_text("name")
    function.inner("parameters")
    return {k: v for k, v in function.value.items() if k != "strict" and v is not None}


def _choice(fields: Fields, known: Mapping[str, object]) -> str | tuple[str, str]:
    """Return "none", "auto", "required", or ("function", the name)."""
    found = fields.get("tool_choice")
    if found is None:
        return "auto"
    if found in ("none", "auto"):
        return str(found)
    if not known:
        raise fields.bad("tool_choice", "none or auto, as there are no tools")
    if found == "required":
        return "required"
    function = Fields(found, "tool_choice").inner("function")
    name = None if function is None else function.text("name")
    if name not in known:
        names = ", ".join(known)
        raise fields.bad("tool_choice", f"none, auto, required, or one of {names}")
    return "function", str(name)
