"""Communication between ranks: collectives run in PyTorch, in the order of the graph, between the programs of Kiln."""

import torch

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"})


def op_of(node):
    """The op that a node calls: of an operator that calls another one (on copies, or in order with others), that one."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        for argument in (*node.args, *node.kwargs.values()):
            if isinstance(argument, torch._ops.OpOverload):
                return argument
    return node.target


def is_collective(node):
    """Whether a node communicates with other ranks, or waits for what does."""
    op = op_of(node)
    return isinstance(op, torch._ops.OpOverload) and op.namespace in _NAMESPACES
