"""Bound lists: record what binding finds, write it down for all sizes, compare it."""

from kvc.runtime.bound_lists.binding import bind_program, why_unbound
from kvc.runtime.bound_lists.comparing import check_lists

__all__ = ["bind_program", "check_lists", "why_unbound"]
