"""Which ops PyTorch spells out before Kiln sees the graph: core ATen's table with what Kiln has whole left out, and ops on lists."""

import functools

import torch

aten = torch.ops.aten

# What Kiln does better whole than in parts. The core table's rule for attention on the CPU gives wrong gradients besides, and its rule
# for `select_scatter` other strides than the op has.
_WHOLE = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten.select_scatter.default,
)


@functools.cache
def decompositions():
    """The decomposition table."""
    table = dict(torch._decomp.core_aten_decompositions().items())
    table.update(on_lists())
    return {op: rule for op, rule in table.items() if op not in _WHOLE}


# Ops on lists whose op on one tensor has another name.
_OF_ONE = {
    "copy": aten.copy.default,
    "maximum": aten.clamp_min,
    "minimum": aten.clamp_max,
    "zero": aten.zeros_like.default,
}


def on_lists():
    """Rules for ``_foreach_*``: the op on each member of the lists."""
    rules = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        one = packet.removeprefix("_foreach_")
        if namespace != "aten" or one == packet:
            continue
        op = getattr(getattr(aten, packet), overload or "default")
        # The numbers of a tensor are not known while a graph is captured.
        if op._schema.is_mutable or any(argument.name == "scalars" and argument.type.kind() == "TensorType" for argument in op._schema.arguments):
            continue
        if one == "norm":
            rules[op] = _norms
        elif one in ("addcmul", "addcdiv"):
            rules[op] = functools.partial(_products_added, getattr(aten, one))
        elif one in _OF_ONE or hasattr(aten, one):
            rules[op] = functools.partial(_each, _OF_ONE.get(one) or getattr(aten, one))
    return rules


def _each(one, *args, non_blocking=False, **kwargs):
    """An op of the members of lists; arguments that are no lists are for all of them."""
    count = max(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    return [one(*(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs) for i in range(count)]


def _products_added(one, tensors, firsts, seconds, value=1):
    values = value if isinstance(value, (list, tuple)) else [value] * len(tensors)
    return [one(x, y, z, value=factor) for x, y, z, factor in zip(tensors, firsts, seconds, values)]


def _norms(tensors, ord=2, dtype=None):
    return [aten.linalg_vector_norm(x, ord, dtype=dtype) for x in tensors]
