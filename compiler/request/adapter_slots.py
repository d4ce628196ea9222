"""`AdapterSlots`: how many adapters a bundle can hold, as the user declares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvc.schema.errors import BadModelSetting

_MOST: Final = 1 << 12  # adapters, and ranks


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """How many adapters a bundle can hold at a time, and of which form.

    Attributes:
        count: the number of adapters.
        rank: the greatest rank of an adapter.
        targets: the layers that adapters can change: the ends of their paths, such as
            "q_proj"; empty for all linear layers, but for the output layer of a model
            of transformers.
        whole: the ends of the paths of linear layers whose matrices adapters can
            replace (PEFT's `modules_to_save`), such as "lm_head". Each takes a whole
            matrix of memory for each adapter that does.
        gains: whether adapters can also multiply the results of layers and add to them,
            as DoRA and trained biases do.
    """

    count: int
    rank: int = 16
    targets: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    gains: bool = False

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            BadModelSetting: a number is not from 1 to 4096, or `targets` or `whole` is
                one text.
        """
        for name in ("count", "rank"):
            value: object = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise wrong_setting(name, f"a number from 1 to {_MOST}", value)
        for name in ("targets", "whole"):
            names: object = getattr(self, name)
            listed = isinstance(names, Sequence) and not isinstance(names, str)
            if not listed or not all(isinstance(t, str) for t in getattr(self, name)):
                raise wrong_setting(name, "a sequence of names of layers", names)


def wrong_setting(name: str, expected: str, found: object) -> BadModelSetting:
    """Return the error for a setting of `AdapterSlots`."""
    return BadModelSetting(
        place="AdapterSlots", setting=name, expected=expected, found=repr(found)
    )
