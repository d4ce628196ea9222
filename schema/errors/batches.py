"""What goes wrong with a batch: its rows, its journal, its output."""

from kvc.schema.errors.base import KvcError


class BatchError(KvcError):
    """A batch cannot be run or continued."""


class BadRow(BatchError):
    """A line of a batch is no request; the other lines are answered all the same.

    Attributes: reason.
    """

    reason: str
    template = "{reason}"


class BatchDiffers(BatchError):
    """A batch is to go on, but is not the one that began.

    Attributes: path (of the journal), what (differs), began, found.
    """

    path: str
    what: str
    began: str
    found: str
    template = "{path} is the journal of a batch with {other} {what}: it began with {began}, found {found}; give what it began with, keep the answers to the lines that are the same (--resume-anyway), or begin anew (--force)"

    def _text(self) -> str:
        other = "other" if self.what.endswith("s") else "another"
        return self.template.format(other=other, **vars(self))


class BatchBegun(BatchError):
    """A batch would replace the answers of an earlier one.

    Attributes: path (the file that exists), hint.
    """

    path: str
    hint: str
    template = "{path} exists; {hint}"


class BatchRunning(BatchError):
    """Another process writes the journal of a batch."""

    path: str
    template = "{path}: another process writes this journal; let it end, or give another output"


class BadJournal(BatchError):
    """A file is not the journal of a batch."""

    path: str
    reason: str
    template = "{path} is not the journal of a batch: {reason}; remove it, or give another output"


class NodeDiffers(BatchError):
    """A node of a cluster has another bundle than the driver, at the same path.

    Attributes: path (of the bundle), node (its id), expected, found (digests).
    """

    path: str
    node: str
    expected: str
    found: str
    template = "{path} on node {node} is another bundle: expected the digest {expected}, found {found}; copy one file to all nodes"


class ActorLost(BatchError):
    """An actor of a cluster was lost, or has not started."""

    reason: str
    template = "{reason}"
