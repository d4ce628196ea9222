"""Methods that run from their bound lists give the bits of their graphs."""

import shutil

import hf_models
import numpy as np
import pytest
from cached_models import VOCAB
from daily import only
from listed_bundles import again, changed_list, changed_tables, save_listed, without_lists

from kvc.compiler import export_hf
from kvc.runtime import BadProgram, CacheOverflow, IndexOutOfRange, KvcError, load
from kvc.runtime.bound_lists import bind_program, check_lists
from kvc.runtime.calls import contexts
from kvc.runtime.execution.list_frames import ListFrame
from kvc.schema.codec import LateBlocks
from kvc.schema.container import BundleFile
from sealing import resealed
