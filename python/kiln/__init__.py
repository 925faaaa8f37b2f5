"""Kiln for PyTorch: ``torch.compile(model, backend="kiln")``.

The backend is registered through PyTorch's entry point, so that no import is needed. This module is for looking at what it did.
"""

from . import cache
from ._kiln import Unsupported, WrongResult, __version__, ops, release_memory, set_threads, threads
from .explain import Explanation, explain
from .options import MODES, Options
from .report import Event, Report, clear_events, events, report
from .shim import connect as _connect

_connect()

__all__ = [
    "MODES",
    "Event",
    "Explanation",
    "Options",
    "Report",
    "Unsupported",
    "WrongResult",
    "__version__",
    "cache",
    "clear_events",
    "events",
    "explain",
    "ops",
    "release_memory",
    "report",
    "set_threads",
    "threads",
]
