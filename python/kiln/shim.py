"""Tells the native part where PyTorch's C functions are."""

import ctypes
import os

import torch

from . import _kiln
from .report import emit

_NAMES = ("data_ptr", "dim", "sizes", "strides", "dtype", "device_type")


def _functions():
    """The addresses of the stable C functions of tensors, by name; those that there are."""
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    except OSError:
        return {}
    found = {name: getattr(library, f"aoti_torch_get_{name}", None) for name in _NAMES}
    return {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in found.items() if function is not None}


def connect():
    """Connects the native part with PyTorch."""
    probes = [torch.empty(2, 3), torch.empty(4, dtype=torch.int64)[1:], torch.nn.Parameter(torch.empty(1))]
    _kiln.connect(torch.Tensor, torch.get_num_threads, emit, _functions(), probes)
