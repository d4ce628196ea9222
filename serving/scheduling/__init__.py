"""Answer many requests at once with one loaded program.

requests --Scheduler--> prompts read in chunks, one decode step for all rows
  --listeners--> pieces of text
"""

from kvc.serving.scheduling.limits import Limits
from kvc.serving.scheduling.requests import Listener, Request, Ticket, Update
from kvc.serving.scheduling.scheduler import Scheduler
from kvc.serving.scheduling.status import Status

__all__ = [
    "Limits",
    "Listener",
    "Request",
    "Scheduler",
    "Status",
    "Ticket",
    "Update",
]
