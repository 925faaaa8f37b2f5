"""Masks of attention that no input decides: those that hide nothing are left out, and causal ones are said in a word.

Hugging Face's models build such masks when they are traced. With one PyTorch chooses a slower attention: an efficient one that reads the
mask, or, where the mask is a view that repeats its elements, the one that has all scores in memory.
"""

import operator

import torch
import torch.nn.functional as F

# Elements of a mask that is looked at.
_MOST_ELEMENTS = 1 << 26
# Calls on the way to a mask.
_MOST_NODES = 64

_IN_PLACE = {operator.setitem} | {
    getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift")
}

# Words of Python with a `_` behind them, which write nothing.
_OPERATORS = {operator.and_, operator.or_, operator.not_, operator.is_}


def simplify_masks(module):
    """Rewrites the calls of attention in what Dynamo captured; returns how many were changed."""
    known, changed = {}, 0
    # The graph, and those of its parts, which higher-order ops call.
    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        found = sum(_simplify(node, known) for node in part.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention))
        if found:
            part.recompile()
            changed += found
    return changed


def _simplify(node, known):
    """Whether a call of attention was changed."""
    query, key, mask = (_argument(node, number, name) for number, name in ((0, "query"), (1, "key"), (3, "attn_mask")))
    fake = _fake(mask)
    if fake is None or _argument(node, 5, "is_causal", False):
        return False
    if mask not in known:
        known[mask] = _kind(mask, fake)
    kind = known[mask]
    if kind == "whole" or kind == "causal" and fake.shape[-2:] == (_fake(query).shape[-2], _fake(key).shape[-2]):
        _set(node, 3, "attn_mask", None)
        _set(node, 5, "is_causal", kind == "causal")
        _erase(mask)
        return True
    if fake.shape[-1] > 1 and fake.stride(-1) == 0:
        with node.graph.inserting_before(node):
            copied = node.graph.call_method("contiguous", (mask,))
        copied.meta = {**mask.meta, "example_value": fake.contiguous()}
        _set(node, 3, "attn_mask", copied)
        return True
    return False


def _erase(node):
    """Erases what nothing needs any more. Nothing that it is made of writes anything."""
    open_ = [node]
    while open_:
        at = open_.pop()
        if not at.users and at.op != "placeholder":
            before = at.all_input_nodes
            at.graph.erase_node(at)
            open_.extend(before)


def _fake(node):
    """The tensor of known sizes that stands for a node's value."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    known = isinstance(found, torch.Tensor) and found.dim() >= 2 and all(type(size) is int for size in found.shape)
    return found if known else None


def _argument(node, number, name, default=None):
    return node.args[number] if len(node.args) > number else node.kwargs.get(name, default)


def _set(node, number, name, value):
    if len(node.args) > number:
        node.update_arg(number, value)
    else:
        node.update_kwarg(name, value)


def _kind(mask, fake):
    """``whole`` of a mask that hides nothing, ``causal`` of one that hides what is later; none of another, or of one that inputs decide."""
    if fake.dtype != torch.bool or fake.numel() > _MOST_ELEMENTS:
        return None
    value = _constant(mask)
    return kind_of(value) if value is not None else None


def kind_of(value):
    """``whole`` of a mask that hides nothing, ``causal`` of one that hides what is later; none of another."""
    if bool(value.all()):
        return "whole"
    rows, columns = value.shape[-2:]
    lower = torch.ones(rows, columns, dtype=torch.bool, device=value.device).tril()
    return "causal" if rows == columns and bool((value == lower).all()) else None


def _constant(node):
    """The value of a node that no input decides."""
    order, seen, open_ = [], set(), [(node, False)]
    while open_:
        at, done = open_.pop()
        if done:
            order.append(at)
            continue
        if at in seen:
            continue
        seen.add(at)
        if at.op not in ("call_function", "call_method") or len(seen) > _MOST_NODES or at.is_impure():
            return None
        open_.append((at, True))
        open_.extend((before, False) for before in at.all_input_nodes)
    if _is_written(seen, node.graph):
        return None
    values = {}
    try:
        with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad(), torch._C.DisableTorchFunction():
            for at in order:
                args, kwargs = (torch.fx.node.map_arg(given, values.__getitem__) for given in (at.args, at.kwargs))
                if at.op == "call_function":
                    values[at] = at.target(*args, **kwargs)
                else:
                    values[at] = getattr(args[0], at.target)(*args[1:], **kwargs)
    except Exception:  # noqa: BLE001 - whatever it is, the mask stays as it was
        return None
    found = values[node]
    return found if isinstance(found, torch.Tensor) and found.dtype == torch.bool else None


def _is_written(nodes, graph):
    """Whether something writes into memory of one of the values."""
    memory = {_storage(node) for node in nodes} - {None}
    return any(_writes(at) and (at in nodes or not memory.isdisjoint(map(_storage, at.all_input_nodes))) for at in graph.nodes)


def _storage(node):
    found = node.meta.get("example_value")
    return found.untyped_storage()._cdata if isinstance(found, torch.Tensor) else None


def _writes(node):
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and node.target not in _OPERATORS
    return in_place or node.target in _IN_PLACE or "out" in node.kwargs or name.startswith("empty")
