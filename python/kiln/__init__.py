"""Kiln for PyTorch: ``torch.compile(model, backend="kiln")``.

The backend is registered through PyTorch's entry point, so that no import is needed. This module is for looking at what it did.
"""

from ._kiln import Unsupported, __version__, ops, set_threads, threads
from .report import Event, Report, clear_events, events, explain, report

__all__ = [
    "Event",
    "Report",
    "Unsupported",
    "__version__",
    "clear_events",
    "events",
    "explain",
    "ops",
    "report",
    "set_threads",
    "threads",
]
