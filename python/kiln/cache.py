"""The disk cache: programs and kernels that other processes find again.

>>> kiln.cache.folder()
PosixPath('/home/me/.cache/kiln')
>>> kiln.cache.size()
1843200
"""

from __future__ import annotations

import os
import pathlib

from . import _kiln

__all__ = ["clear", "entries", "folder", "set_folder", "size", "stats"]


def folder() -> pathlib.Path | None:
    """Where it is: ``KILN_CACHE_DIR``, or ``kiln`` in ``XDG_CACHE_HOME`` or ``~/.cache``; none where it is off (``KILN_CACHE=off``)."""
    found = _kiln.cache_folder()
    return None if found is None else pathlib.Path(found)


def set_folder(path: str | os.PathLike[str] | None) -> None:
    """Uses another folder from now on, or none."""
    _kiln.set_cache_folder(path)


def entries() -> dict[str, tuple[int, int]]:
    """Entries and their bytes, by kind: programs, kernels, tuning."""
    return dict(_kiln.cache_entries())


def size() -> int:
    """Bytes of all entries."""
    return sum(size for _, size in entries().values())


def clear() -> tuple[int, int]:
    """Removes all entries, and the times of PyTorch's kernels; returns the number of entries and their bytes."""
    from . import torch_kernels

    torch_kernels.forget()
    return _kiln.clear_cache()


def stats() -> dict[str, int]:
    """Counters since the process began: ``hits``, ``misses``, ``stored`` entries …, ``kernels_compiled`` and ``kernels_reused``."""
    return dict(_kiln.cache_stats())
