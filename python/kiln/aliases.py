"""Outputs that are views: of an input, or of another output. PyTorch expects them to share memory with it."""

import torch

from .sizes import is_symbolic


def storage_of(node):
    """The memory of a node's result; none if it is no tensor with memory."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return None
    try:
        return fake.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _is_whole(fake):
    """Whether a tensor's elements are all of its memory."""
    numbers = (*fake.shape, *fake.stride(), fake.storage_offset(), fake.untyped_storage().nbytes())
    if any(is_symbolic(number) for number in numbers):
        return False
    return fake.storage_offset() == 0 and fake.numel() * fake.element_size() == fake.untyped_storage().nbytes()


def views_of_parameters(outputs, parameters):
    """The outputs that are views of parameters: by output, the parameter."""
    owners = {}
    for node in parameters:
        storage = storage_of(node)
        if storage is not None:
            owners.setdefault(storage, node)
    found = {}
    for node in outputs:
        owner = owners.get(storage_of(node))
        if owner is not None and node not in parameters:
            found[node] = owner
    return found


def only_views(graph, parameters):
    """The nodes that only lead to outputs that are views of parameters: these are made of the parameters' memory."""
    computed = [node for node in graph.nodes if node.op == "call_function"]
    views = views_of_parameters(computed, parameters)
    unused = set()
    for node in reversed(computed):
        if node in views and not _writes(node) and all(user.op == "output" or user in unused for user in node.users):
            unused.add(node)
    return unused


def _writes(node):
    schema = getattr(node.target, "_schema", None)
    return schema is None or schema.is_mutable


def views_of_outputs(outputs):
    """The outputs that are views of other outputs: by output, the other."""
    bases = {}
    for node in outputs:
        storage = storage_of(node)
        fake = node.meta["val"]
        # The memory of a lazily conjugated or negated one holds other values.
        if storage is not None and storage not in bases and _is_whole(fake) and not is_lazy(node):
            bases[storage] = node
    found = {}
    for node in outputs:
        base = bases.get(storage_of(node))
        if base is not None and base is not node:
            found[node] = base
    return found


def view(base, captured, like, evaluate):
    """The view of ``base`` that ``like`` is of ``captured``. Nothing guards where in its memory an argument begins, so that it may be
    elsewhere than it was captured."""
    behind = like.storage_offset() * like.element_size() - captured.storage_offset() * captured.element_size()
    if like.dtype != base.dtype:
        # Of complex numbers also those are viewed that have no axis, or whose last one has gaps.
        whole = base.is_complex() and base.dtype.to_real() == like.dtype
        base = torch.view_as_real(base.conj() if base.is_conj() else base) if whole else base.view(like.dtype)
    size = [evaluate(n) for n in like.shape]
    stride = [evaluate(n) for n in like.stride()]
    made = torch.as_strided(base, size, stride, base.storage_offset() + evaluate(behind) // like.element_size())
    made = made.conj() if like.is_conj() != made.is_conj() else made
    return torch._neg_view(made) if like.is_neg() != made.is_neg() else made


def is_lazy(node):
    """Whether a tensor is conjugated or negated when it is read."""
    return node.meta["val"].is_conj() or node.meta["val"].is_neg()


def lazily(tensor, like):
    """The same memory, conjugated and negated as ``like`` is when it is read."""
    tensor = tensor.conj() if like.is_conj() else tensor
    return torch._neg_view(tensor) if like.is_neg() else tensor


def handed_in(run, places):
    """A function of a list of arguments, of which some come from others: pairs of a place and what the argument there was captured as.
    They may be conjugated or negated lazily where that was not, and the other way round, or zeros without memory."""

    def called(arguments):
        for place, fake in places:
            given = arguments[place]
            if given._is_zerotensor():
                given = arguments[place] = given.clone()
            if given.is_conj() != fake.is_conj() or given.is_neg() != fake.is_neg():
                arguments[place] = lazily(lazily(given, fake).resolve_conj().resolve_neg(), fake)
        return run(arguments)

    return called
