"""What runs at call time, and what keeps and builds it: compiler processes, disk cache, executables."""

from firebrick.runtime.bits import ConstantsChanged, WithBits
from firebrick.runtime.build import Compiler, build, find_compiler
from firebrick.runtime.cache import DiskCache, Key, cache_entries, cache_state, clear_cache, make_key, why_miss
from firebrick.runtime.deferred import Deferred, Hot, OutOfDate
from firebrick.runtime.load import AutogradViews, Executable, TorchViews, ViewRow, load
from firebrick.runtime.source import source_digest
from firebrick.runtime.training import Part, Place, Tangent, Training, TrainingPlan, seen
