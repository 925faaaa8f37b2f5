"""Rules for `quantized_decomposed`, the ops of models that PyTorch has quantised, where they are defined: PyTorch's own functions of the
ops that it has Kiln see, and those whose scales are tensors without reading these."""

import sys

import torch

# The functions of one module that are made of ops alone.
_FUNCTIONS = {
    "quantize_per_tensor.default": "quantize_per_tensor",
    "dequantize_per_tensor.default": "dequantize_per_tensor",
    "quantize_per_channel.default": "quantize_per_channel",
    "dequantize_per_channel.default": "dequantize_per_channel",
    "quantize_per_token.default": "quantize_per_token",
    "dequantize_per_token.default": "dequantize_per_token",
    "choose_qparams_per_token.default": "choose_qparams_per_token",
    "_choose_qparams_per_token_asymmetric_impl.default": "_choose_qparams_per_token_asymmetric_impl",
    "quantize_per_channel_group.default": "quantize_per_channel_group",
    "dequantize_per_channel_group.default": "dequantize_per_channel_group",
}


def quantized_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    module = sys.modules.get("torch.ao.quantization.fx._decomposed")
    if module is None:
        return {}
    ops = torch.ops.quantized_decomposed
    rules = {_op(ops, name): getattr(module, function) for name, function in _FUNCTIONS.items() if hasattr(module, function)}
    return {
        **{op: rule for op, rule in rules.items() if op is not None},
        ops.quantize_per_tensor.tensor: _quantize,
        ops.quantize_per_tensor.tensor2: _quantize,
        ops.dequantize_per_tensor.tensor: _dequantize,
        ops.dequantize_per_tensor.tensor2: _dequantize,
    }


def _op(ops, name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(ops, packet, None), overload, None)


def _quantize(x, scale, zero_point, quant_min, quant_max, dtype):
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return NotImplemented
    level = torch.round(x.float() * (1.0 / scale).float().reshape(())) + zero_point.reshape(())
    return level.clamp(quant_min, quant_max).to(dtype)


def _dequantize(x, scale, zero_point, quant_min, quant_max, dtype, *, out_dtype=None):
    scale = scale.reshape(()).to(out_dtype or torch.float32)
    return (x.to(out_dtype or torch.float32) - zero_point.reshape(())) * scale
