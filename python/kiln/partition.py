"""Which nodes of a graph run in Kiln, and in which programs."""

import operator
import sys

import torch
from torch.fx.node import Node

from . import _kiln, aliases
from .collectives import is_collective, op_of
from .lower import Lowering, NotNative, is_size, source_of
from .options import DEFAULT
from .sizes import symbols_of


def _at(node):
    """Where the user's code has a node, as the end of a sentence."""
    file, line = source_of(node)
    return f", at {file}:{line}" if file else ""


def _is_data(node):
    """Whether a number comes from the elements of a tensor."""
    return node.op == "call_function" and node.target is torch.ops.aten._local_scalar_dense.default


def is_computed(node):
    """Whether a node is a call that has to be made: sizes follow from the arguments."""
    return node.op == "call_function" and (_is_data(node) or not is_size(node))


def is_check(node):
    """Whether a node compares sizes and raises an error, and computes nothing."""
    return node.target is torch.ops.aten._assert_scalar.default


def is_sized_by_call(node):
    """Whether PyTorch has no rule for the sizes of a node's results: it calls the op with zeros then, also where they depend on data."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "Meta")


_UNIQUE = frozenset({torch.ops.aten._unique2.default, torch.ops.aten.unique_dim.default, torch.ops.aten.unique_consecutive.default})


def is_captured_otherwise(node):
    """Whether PyTorch captures a node's results with other dtypes than its kernel gives: the places and counts of unique elements have the
    elements' dtype then."""
    fake = node.args[0].meta["val"] if node.target in _UNIQUE else None
    return fake is not None and fake.dtype != torch.int64 and any(user.args[1] > 0 for user in node.users)


def symbols(node):
    """The symbols of a node's sizes and strides, and of the sizes among its arguments."""
    found = set()
    fakes = node.meta.get("val")
    for fake in fakes if isinstance(fakes, (list, tuple)) else [fakes]:
        numbers = (*fake.shape, *fake.stride()) if isinstance(fake, torch.Tensor) else [fake]
        for number in numbers:
            if isinstance(number, torch.SymInt):
                found |= symbols_of(number)
    for arg in node.all_input_nodes:
        fake = arg.meta.get("val")
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            found |= symbols_of(fake)
    return found


# Operators of functions: AOTAutograd has made them functional.
_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl", "associative_scan", "invoke_subgraph"})


def is_control_flow(node):
    """Whether a node calls graphs of its own."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _CONTROL_FLOW


def draws_as_eager(options):
    """Whether random numbers have to be those of PyTorch's generator: the option, or else Inductor's setting."""
    if options.fallback_random is not None:
        return options.fallback_random
    config = sys.modules.get("torch._inductor.config")
    return config is not None and config.fallback_random


# Operators of functions that keep the generator's state, or draw again from one that was kept: PyTorch makes them of an op that
# activation checkpointing computes twice.
_KEEPS_STATE, _DRAWS_AGAIN = "run_and_save_rng_state", "run_with_rng_state"


def _is_of_generator(node):
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in (_KEEPS_STATE, _DRAWS_AGAIN)


def _draws(node):
    """Whether a node takes numbers from PyTorch's generator."""
    if _is_of_generator(node):
        return node.target.name() == _KEEPS_STATE
    return torch.Tag.nondeterministic_seeded in getattr(op_of(node), "tags", ())


def foreign_nodes(nodes, parameters, device, options=DEFAULT):
    """The nodes that PyTorch runs, each with the reason (none for collectives, and for the parts of another's result), and the
    description of the graph, which is whole if there are no such nodes."""
    lowering = Lowering(device)
    written = beside_writes(nodes)
    as_eager = draws_as_eager(options)
    reasons = {}
    unknown = set()
    for node in parameters:
        if not isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt)):
            continue
        try:
            lowering.parameter(node)
        except NotNative:
            unknown.add(node)
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in reasons:
            reasons[node] = None
            _foreign(lowering, node, unknown)
            continue
        if is_collective(node) or node in written:
            reasons[node] = written.get(node)
            _foreign(lowering, node, unknown)
            continue
        if is_check(node):
            reasons[node] = None
            continue
        missing = [arg for arg in node.all_input_nodes if arg in unknown and not is_size(arg)]
        try:
            if _is_data(node):
                raise NotNative(f"{node.target}: a number is read from a tensor{_at(node)}")
            if _is_of_generator(node):
                raise NotNative(f"{op_of(node)}: its random numbers are drawn twice{_at(node)}")
            if as_eager and _draws(node):
                raise NotNative(f"{node.target}: fallback_random asks for PyTorch's random numbers")
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise NotNative(_of_operator(node))
            if missing:
                raise NotNative(f"{node.target} of {missing[0]}, which is no tensor of Kiln's")
            lowering.call(node)
        except (NotNative, _kiln.Unsupported) as error:
            reasons[node] = str(error)
            _foreign(lowering, node, unknown)
    for number, reason in lowering.graph.unsupported():
        reasons.setdefault(lowering.calls[number], reason)
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in reasons:
            reasons[node] = None
    return reasons, lowering


def _of_operator(node):
    """Why an operator of functions or of ops runs in PyTorch."""
    if is_control_flow(node):
        return f"{node.target.name()} is control flow: its branches run in Kiln, the choice in PyTorch{_at(node)}"
    called = op_of(node)
    if called is node.target:
        return f"{node.target.name()} is an operator that Kiln lacks{_at(node)}"
    how = {"auto_functionalized": "writes into copies of its arguments", "with_effects": "has effects"}
    name = node.target.name()
    return f"{called} {how.get(name.removesuffix('_v2'), f'is called by {name}')}: it runs in PyTorch{_at(node)}"


def _foreign(lowering, node, unknown):
    """Makes the result of a node that runs elsewhere a parameter of the rest."""
    fake = node.meta.get("val")
    try:
        if isinstance(fake, torch.Tensor):
            lowering.parameter(node)
        elif not isinstance(fake, (list, tuple)):
            unknown.add(node)
    except NotNative:
        unknown.add(node)


def levels(nodes, foreign):
    """Cuts a graph into alternating parts: a list of pairs, nodes of one program and the foreign nodes that run after it."""
    level = {}
    highest = latest = drawn = written = 0
    # The nodes whose results tell sizes that depend on data.
    tells = {symbol: node for node in foreign for symbol in node.meta.get("unbacked_bindings") or ()}
    for node in nodes:
        before = [(arg, level[arg]) for arg in node.all_input_nodes if arg in level]
        if tells:
            before += [(tells[symbol], level[tells[symbol]]) for symbol in symbols(node) if tells.get(symbol, node) in level]
        # What needs a foreign node's result is in the program after it.
        step = [at + (arg in foreign and node not in foreign) for arg, at in before]
        level[node] = max(step, default=0)
        # What is after a node that writes in the graph runs after it, and what is before runs before.
        if written:
            level[node] = max(level[node], written - (node in foreign))
        if is_mutable(node):
            level[node] = max([level[node], *(level[other] for other in level)])
            written = level[node] + 1
        if is_collective(node):
            # Ranks meet in the order of the graph.
            latest = level[node] = max(level[node], latest)
        if node in foreign and _draws(node):
            # Draws from one generator keep their order.
            level[node] = drawn = max(level[node], drawn)
        highest = max(highest, level[node] + (node in foreign))
    for node in nodes:
        # Inputs are overwritten when everything that reads them has run.
        if node.target is torch.ops.aten.copy_.default:
            level[node] = highest + 1
    parts = [([], []) for _ in range(highest + 2)]
    for node in nodes:
        parts[level[node]][node in foreign].append(node)
    return [part for part in parts if part[0] or part[1]]


# Operators that write into their arguments. After AOTAutograd all others are functions.
_WRITES = frozenset({"triton_kernel_wrapper_mutation"})


def is_mutable(node):
    """Whether a node writes into its arguments, other than to overwrite one of the graph's at the end."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.target.name() in _WRITES
    if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def beside_writes(nodes):
    """Nodes that have to run in PyTorch because their memory is written into: those that write, with the reason, and those whose results
    share memory with what is written."""
    found, memories = {}, set()
    for node in filter(is_mutable, nodes):
        found[node] = f"{op_of(node)} writes into its arguments{_at(node)}"
        memories |= {aliases.storage_of(arg) for arg in node.all_input_nodes} - {None}
    for node in nodes if memories else ():
        shared = any(aliases.storage_of(arg) == aliases.storage_of(node) for arg in node.all_input_nodes)
        if shared and aliases.storage_of(node) in memories:
            found.setdefault(node, None)
    return found


def used_nodes(value):
    """The nodes in an argument of the output."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from used_nodes(item)
