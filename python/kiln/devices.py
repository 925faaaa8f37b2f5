"""Which device a graph runs on, and what PyTorch's side of that device needs."""

import functools
import glob
import os

import torch

_HOST = torch.device("cpu")


def of_graph(nodes):
    """The device of a graph's programs: that of most of its tensors that are not on the host; the host's where there are none."""
    counts = {}
    for node in nodes:
        for fake in fakes(node):
            if fake.device.type == "cuda":
                counts[fake.device] = counts.get(fake.device, 0) + 1
    return max(counts, key=counts.get) if counts else _HOST


def fakes(node):
    """The tensors that a node gives, as they were traced."""
    found = node.meta.get("val")
    return [fake for fake in (found if isinstance(found, (list, tuple)) else [found]) if isinstance(fake, torch.Tensor)]


def is_host_scalar(fake, device):
    """Whether a tensor is a number on the host, which PyTorch lets stand beside tensors of any device."""
    return fake.device == _HOST and device != _HOST and fake.dim() == 0


def allocator(device):
    """The function of sizes, strides and dtype that allocates a tensor on a device."""
    if device.type == "cpu":
        return torch._C._dynamo.guards._empty_strided_cpu
    # The short way allocates on the current device, whichever that is.
    if torch.cuda.device_count() == 1 and hasattr(torch._C._dynamo.guards, "_empty_strided_cuda"):
        return torch._C._dynamo.guards._empty_strided_cuda
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def seed(device):
    """A new seed, from PyTorch's generator of that device. A GPU's stays there: nothing waits for it, and a CUDA graph that the user
    captures draws a new one at each replay."""
    if device.type == "cpu":
        return torch.randint(2**63 - 1, (), dtype=torch.int64).item()
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


@functools.cache
def find_libraries():
    """Tells Kiln of the CUDA libraries that PyTorch's own packages brought, unless the user names others."""
    if "KILN_CUDA_PATH" in os.environ:
        return
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    folders = sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))
    if folders:
        os.environ["KILN_CUDA_PATH"] = os.pathsep.join(folders)
