"""Peak memory of a piece of work: of the allocator on a GPU, of the process on the CPU."""

import contextlib
import pathlib
import types

import torch


def _resident_peak():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e6
    return None


@contextlib.contextmanager
def peak(device):
    """Yields an object whose ``gigabytes`` is the peak while the block ran; None where the system does not tell."""
    result = types.SimpleNamespace(gigabytes=None)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/clear_refs").write_text("5")
    yield result
    if device == "cuda":
        result.gigabytes = torch.cuda.max_memory_allocated() / 1e9
    else:
        with contextlib.suppress(OSError):
            result.gigabytes = _resident_peak()
