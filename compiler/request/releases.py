"""The releases of torch and of transformers that the compiler supports.

The compiler patches undocumented functions of both packages, so with an untested
release it might silently make a wrong program.
"""

import re

from kvc.schema.frozen import frozen


@frozen
class Releases:
    """A range of a package's minor releases, from `first` to just before `before`."""

    package: str
    first: tuple[int, int]
    before: tuple[int, int]

    def has(self, version: str) -> bool:
        """Tell whether a release, such as 2.13.0+cpu, is in the range."""
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None:
            return False
        return self.first <= (int(found[1]), int(found[2])) < self.before

    def __str__(self) -> str:
        """Return the range in the syntax of pip."""
        (a, b), (c, d) = self.first, self.before
        return f"{self.package}>={a}.{b},<{c}.{d}"


TORCH = Releases("torch", (2, 13), (2, 14))
TRANSFORMERS = Releases("transformers", (5, 23), (5, 24))
