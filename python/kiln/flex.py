"""``flex_attention`` in ATen ops: scores, the user's change of them, their softmax."""

import itertools
import operator

import torch
import torch.nn.functional as F
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward, math_attention, sdpa_dense_backward
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Node, map_arg
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from .masks import kind_of

aten = torch.ops.aten

# Elements of a mask that is looked at.
_MOST_ELEMENTS = 1 << 26


def inline_flex_attention(module, decompositions):
    """Puts what it computes in the place of every node that is such an attention."""
    table = {**decompositions, torch.ops.flex_lib.zeros_and_scatter.default: _scattered}
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is flex_attention:
            used = {user.args[1] for user in node.users}
            keeps_scores = used <= {0} and _keeps_scores(getattr(module, node.args[3].target))
            _inline(module, node, _masked_attention if keeps_scores else math_attention, table)
        elif node.op == "call_function" and node.target is flex_attention_backward:
            _inline(module, node, sdpa_dense_backward, table)


def _keeps_scores(score_mod):
    """Whether scores stay what they are: the attention differs from others by its mask alone."""
    scores = score_mod.graph.find_nodes(op="placeholder")[0]
    result = score_mod.graph.find_nodes(op="output")[0].args[0]
    return result is scores or result == (scores,)


def _masked_attention(query, key, value, score_mod, block_mask, scale, kernel_options, score_buffers=(), mask_buffers=()):
    allowed = _vmap_for_bhqkv(block_mask[-1], prefix=(), suffix=(None,) * len(mask_buffers))
    sizes = (query.size(0), query.size(1), query.size(2), key.size(2))

    def mask():
        with TransformGetItemToIndex():
            return allowed(*(torch.arange(size, device=query.device) for size in sizes), *mask_buffers)

    kind = None
    if not mask_buffers and all(type(size) is int for size in sizes) and sizes[2] * sizes[3] * sizes[0] * sizes[1] <= _MOST_ELEMENTS:
        with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing():
            kind = kind_of(mask())
    key, value = (x.expand(query.size(0), *x.shape[1:]) for x in (key, value))
    shared = key.size(1) != query.size(1)
    given = {} if kind == "whole" else {"is_causal": True} if kind == "causal" else {"attn_mask": mask().expand(sizes)}
    return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=shared, **given), None, None


def _scattered(shape, indices, value):
    """The gradient of a captured tensor that the scores are looked up in."""
    return aten.index_put(torch.zeros(shape, dtype=value.dtype, device=value.device), indices, value, accumulate=True)


def _inline(module, node, function, table):
    graphs = [arg for arg in node.all_input_nodes if arg.op == "get_attr" and _is_graph(module, arg)]
    inputs = [arg for arg in node.all_input_nodes if arg not in graphs]
    fakes = [arg.meta["val"] for arg in inputs]
    wanted = _wanted_gradients(node)

    def call(*values):
        given = dict(zip(inputs, values))
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: given[arg] if arg in given else getattr(module, arg.target))
        return function(*args, **kwargs)

    mode = torch._guards.detect_fake_mode(fakes)
    with mode, torch.no_grad():
        fakes = [fake.detach().requires_grad_() if arg in wanted else fake for arg, fake in zip(inputs, fakes)]
        traced = make_fx(call, decomposition_table=table, _allow_non_fake_inputs=True)(*fakes)
    with module.graph.inserting_before(node):
        copies, results = _copied(module, traced, inputs, node)
        _replace(module.graph, node, results)
    for unused in (*reversed(copies), *graphs):
        if not unused.users:
            module.graph.erase_node(unused)


def _wanted_gradients(node):
    """The captured tensors whose gradients a backward node gives."""
    if node.target is not flex_attention_backward:
        return ()
    buffers = node.args[12] if len(node.args) > 12 else node.kwargs.get("score_mod_other_buffers", ())
    return {buffer for buffer, gradient in zip(buffers, node.meta["val"][3]) if isinstance(gradient, torch.Tensor)}


def _is_graph(module, node):
    return isinstance(getattr(module, node.target, None), torch.fx.GraphModule)


def _copied(module, traced, inputs, at):
    """The nodes of another graph, with what they are called with in the place of its parameters: all of them, and its results."""
    known = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs))
    copies = []
    for node in traced.graph.nodes:
        if node.op == "output":
            return copies, map_arg(node.args[0], known.__getitem__)
        if node.op == "placeholder":
            continue
        if node.target is aten.copy_.default:
            # Gradients are written into new memory; strides are of no concern before the results.
            known[node] = known[node.args[0]] = known[node.args[1]]
            continue
        if node.target is aten._to_copy.default and not isinstance(node.args[0], Node):
            # `vmap` leaves numbers where tensors of one element were.
            copy = module.graph.call_function(aten.scalar_tensor.default, node.args, node.kwargs)
            copy.meta.update(node.meta)
        else:
            copy = module.graph.node_copy(node, known.__getitem__)
        known[node] = copy
        copies.append(copy)
        copy.meta["stack_trace"] = at.meta.get("stack_trace")
        if node.op == "get_attr":
            numbers = (f"_flex{number}" for number in itertools.count())
            copy.target = next(name for name in numbers if not hasattr(module, name))
            setattr(module, copy.target, getattr(traced, node.target))
            copy.meta.setdefault("val", getattr(traced, node.target))
    raise AssertionError("a graph without an output")


def _replace(graph, node, results):
    """Lets the users of a node's results use these, in the strides that the graph was captured with."""
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user} uses all results of {node}"
        result = results[user.args[1]]
        if not isinstance(result, Node):
            if isinstance(result, (list, tuple)):
                _replace(graph, user, result)
            continue
        fake, made = user.meta["val"], result.meta["val"]
        if isinstance(fake, torch.Tensor) and fake.stride() != made.stride():
            result = graph.call_function(aten.clone.default, (result,))
            result.meta.update(user.meta)
        user.replace_all_uses_with(result)
        graph.erase_node(user)
    graph.erase_node(node)
