"""Communication between ranks: collectives run in PyTorch, in the order of the graph, between the programs of Kiln."""

import torch

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"})


def is_collective(node):
    """Whether a node communicates with other ranks, or waits for what does."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _NAMESPACES
