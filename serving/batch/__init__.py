"""Answer all prompts of a file, so that a run that is killed can go on.

    lines --rows--> requests --Scheduler--> outcomes --journal--> output, in order

`Job` has the whole way; BATCH.md tells how to use it.
"""

from kvc.serving.batch.answering import Answerer, Answering
from kvc.serving.batch.job import Job, Progress, StreamingJob, write_output
from kvc.serving.batch.journal import SUFFIX, Identity, Journal
from kvc.serving.batch.lines import Input, opened, survey
from kvc.serving.batch.outcomes import Outcome, failure_of
from kvc.serving.batch.prompts import AdapterChoice, Prompts
from kvc.serving.batch.rows import Row, row_from

__all__ = [
    "SUFFIX",
    "AdapterChoice",
    "Answerer",
    "Answering",
    "Identity",
    "Input",
    "Job",
    "Journal",
    "Outcome",
    "Progress",
    "Prompts",
    "Row",
    "StreamingJob",
    "failure_of",
    "opened",
    "row_from",
    "survey",
    "write_output",
]
