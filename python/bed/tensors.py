"""Tensors inside of nested values: found, copied, converted."""

import dataclasses

import torch


def tensors(value, seen=None):
    """All tensors of a value, in order: of lists, dictionaries, dataclasses, and of a cache of keys and values."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen or isinstance(value, (str, bytes, int, float, bool, complex, type(None), type, torch.nn.Module)):
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        parts = vars(value).values()
    else:
        parts = ()
    return [tensor for part in parts for tensor in tensors(part, seen)]


def copied(tensor):
    """A tensor of the same values, strides and requires_grad in memory of its own; holes and overlaps are kept."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    with torch.no_grad():
        if tensor.numel() == 0:
            room = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        else:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            source = tensor.detach().resolve_conj().resolve_neg() if _is_lazy(tensor) else tensor.detach()
            flat = torch.as_strided(source, (extent,), (1,)) if source.stride() == tensor.stride() else None
            room = source.clone() if flat is None else torch.as_strided(flat.clone(), tensor.shape, tensor.stride())
    return room.requires_grad_(tensor.requires_grad)


def _is_lazy(tensor):
    return tensor.is_conj() or tensor.is_neg()


def mapped(value, change):
    """The same nested lists, tuples and dictionaries with ``change(tensor)`` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, mapped(part, change)) for key, part in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(part, change) for part in value)
    return value


def to_double(tensor):
    """Float tensors in float64, complex ones in complex128; others as they are."""
    if tensor.is_floating_point():
        return tensor.detach().to(torch.float64).requires_grad_(tensor.requires_grad)
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128).requires_grad_(tensor.requires_grad)
    return tensor
