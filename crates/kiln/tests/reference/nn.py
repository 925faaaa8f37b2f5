"""What PyTorch's layers give on small inputs: state dicts, results and gradients, for tests/nn.rs.

Run as `python nn.py`; it writes nn.safetensors beside itself. Names are `case/state/…`, `case/input/0`, `case/output`,
`case/grad/…` (of the sum of the output times `case/cotangent`), `case/grad_input`, and where the layer changes its buffers
`case/after/…` and `case/eval`.
"""

import pathlib

import checkpoint
import torch
from torch import nn

torch.manual_seed(0)
RESULT = {}


def stir(module):
    """Makes ones and zeros tell a mistake."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point() and (value.min() == value.max()):
                value.copy_(torch.rand_like(value) + 0.5)


def case(name, module, *inputs, run=None):
    stir(module)
    for key, value in module.state_dict().items():
        RESULT[f"{name}/state/{key}"] = value.clone()
    for number, value in enumerate(inputs):
        RESULT[f"{name}/input/{number}"] = value.clone()
    x = inputs[0]
    if x.is_floating_point():
        x.requires_grad_(True)
    output = (run or module)(*inputs)
    cotangent = torch.randn_like(output)
    (output * cotangent).sum().backward()
    RESULT[f"{name}/output"] = output
    RESULT[f"{name}/cotangent"] = cotangent
    for key, value in module.named_parameters():
        RESULT[f"{name}/grad/{key}"] = value.grad
    if x.grad is not None:
        RESULT[f"{name}/grad_input"] = x.grad
    if list(module.buffers()):
        for key, value in module.state_dict().items():
            RESULT[f"{name}/after/{key}"] = value.clone()
        module.eval()
        RESULT[f"{name}/eval"] = module(inputs[0])


def attend(module, **options):
    """Self-attention of one input, attention to the second of two."""
    def run(q, k=None):
        k = q if k is None else k
        return module(q, k, k, need_weights=False, **options)[0]
    return run


case("linear", nn.Linear(5, 3), torch.randn(2, 4, 5))
case("linear_no_bias", nn.Linear(5, 3, bias=False), torch.randn(4, 5))
case("embedding", nn.Embedding(7, 3), torch.tensor([[1, 0, 6], [2, 2, 3]]))
case("rms_norm", nn.RMSNorm([6], eps=1e-6), torch.randn(3, 6))
case("layer_norm", nn.LayerNorm([3, 4]), torch.randn(2, 3, 4))
case("layer_norm_no_bias", nn.LayerNorm(4, bias=False), torch.randn(2, 4))
case("layer_norm_plain", nn.LayerNorm(4, elementwise_affine=False), torch.randn(2, 4))
case("group_norm", nn.GroupNorm(2, 4), torch.randn(2, 4, 3))
case("batch_norm1d", nn.BatchNorm1d(3), torch.randn(4, 3))
case("batch_norm1d_long", nn.BatchNorm1d(3), torch.randn(2, 3, 5))
case("batch_norm2d", nn.BatchNorm2d(3), torch.randn(2, 3, 2, 2))
case("batch_norm2d_plain", nn.BatchNorm2d(3, affine=False), torch.randn(2, 3, 2, 2))
case("batch_norm2d_average", nn.BatchNorm2d(3, momentum=None), torch.randn(2, 3, 2, 2))
case("batch_norm2d_untracked", nn.BatchNorm2d(3, track_running_stats=False), torch.randn(2, 3, 2, 2))
case("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), torch.randn(2, 4, 7))
case("conv2d", nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), torch.randn(2, 2, 5, 6))
case("conv2d_no_bias", nn.Conv2d(2, 2, 3, bias=False), torch.randn(1, 2, 4, 4))
case("max_pool2d", nn.MaxPool2d(3, stride=2, padding=1), torch.randn(1, 2, 6, 6))
case("avg_pool2d", nn.AvgPool2d(2), torch.randn(1, 2, 6, 6))
case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((2, 3)), torch.randn(1, 2, 5, 7))
case("flatten", nn.Flatten(), torch.randn(2, 3, 2))

mha = nn.MultiheadAttention(8, 2, batch_first=True)
case("attention", mha, torch.randn(2, 5, 8), run=attend(mha))
mha = nn.MultiheadAttention(8, 4, batch_first=True)
square = nn.Transformer.generate_square_subsequent_mask(5)
case("attention_causal", mha, torch.randn(2, 5, 8), run=attend(mha, attn_mask=square, is_causal=True))
mha = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
case("attention_cross", mha, torch.randn(2, 3, 8), torch.randn(2, 6, 8), run=attend(mha))
mha = nn.MultiheadAttention(8, 2, batch_first=True)
keep = torch.rand(4, 4) > 0.4
keep[:, 0] = True
case("attention_masked", mha, torch.randn(2, 4, 8), run=attend(mha, attn_mask=~keep))
RESULT["attention_masked/keep"] = keep

for name in "ReLU ReLU6 SiLU Tanh Sigmoid LogSigmoid Mish Softplus Softsign SELU Hardsigmoid Hardswish LeakyReLU ELU".split():
    case(name.lower(), getattr(nn, name)(), torch.randn(12) * 3)
case("gelu", nn.GELU(), torch.randn(12) * 3)
case("gelu_tanh", nn.GELU(approximate="tanh"), torch.randn(12) * 3)
case("softmax", nn.Softmax(-1), torch.randn(3, 4))
case(
    "sequential",
    nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
    torch.randn(3, 1, 4, 4),
)

case("conv3d", nn.Conv3d(2, 4, (2, 3, 3), stride=(1, 2, 1), padding=1, groups=2), torch.randn(1, 2, 3, 5, 4))
case("conv_transpose1d", nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1, groups=2, output_padding=1), torch.randn(2, 4, 5))
case("conv_transpose2d", nn.ConvTranspose2d(3, 2, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2)), torch.randn(1, 3, 4, 3))
case("conv_transpose2d_no_bias", nn.ConvTranspose2d(2, 2, 2, stride=2, bias=False), torch.randn(1, 2, 3, 3))
case("conv_transpose3d", nn.ConvTranspose3d(2, 3, 2, stride=2), torch.randn(1, 2, 2, 3, 2))
case("depthwise", nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6), torch.randn(2, 6, 9, 19))
case("multiplier", nn.Conv2d(3, 6, 3, padding=1, groups=3), torch.randn(2, 3, 6, 18))
case("max_pool1d", nn.MaxPool1d(3, stride=2, padding=1), torch.randn(2, 2, 8))
case("max_pool3d", nn.MaxPool3d(2, stride=1), torch.randn(1, 2, 3, 4, 3))
case("avg_pool1d", nn.AvgPool1d(2, stride=1, padding=1, count_include_pad=False), torch.randn(2, 2, 6))
case("avg_pool3d", nn.AvgPool3d(2), torch.randn(1, 2, 4, 4, 4))
case("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(3), torch.randn(2, 2, 7))
case("adaptive_avg_pool3d", nn.AdaptiveAvgPool3d((1, 2, 3)), torch.randn(1, 2, 2, 5, 4))
case("upsample_nearest", nn.Upsample(scale_factor=2), torch.randn(1, 2, 3, 4))
case("upsample_nearest1d", nn.Upsample(scale_factor=3), torch.randn(2, 2, 3))
case("upsample_bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), torch.randn(1, 2, 3, 4))
case("upsample_corners", nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), torch.randn(1, 2, 3, 4))
case("pixel_shuffle", nn.PixelShuffle(2), torch.randn(1, 8, 2, 3))
case("pixel_unshuffle", nn.PixelUnshuffle(2), torch.randn(1, 2, 4, 6))
for mode in ["sum", "mean", "max"]:
    bag = nn.EmbeddingBag(7, 3, mode=mode)
    case(f"embedding_bag_{mode}", bag, torch.tensor([[1, 0, 6], [2, 2, 3]]))
    starts = torch.tensor([0, 2, 2, 5])
    RESULT[f"embedding_bag_{mode}/starts"] = starts
    RESULT[f"embedding_bag_{mode}/bags"] = bag(torch.tensor([1, 0, 6, 2, 2, 3]), starts)
for name, both in [("lstm", False), ("lstm_both", True), ("gru", False), ("gru_both", True)]:
    layer = (nn.LSTM if "lstm" in name else nn.GRU)(3, 4, 2, batch_first=True, bidirectional=both)
    case(name, layer, torch.randn(2, 5, 3), run=lambda x: layer(x)[0])
    x, first = torch.randn(2, 3, 3), torch.randn(4 if both else 2, 2, 4)
    RESULT[f"{name}/x"], RESULT[f"{name}/first"] = x, first
    y, last = layer(x, (first, first * 2)) if "lstm" in name else layer(x, first)
    RESULT[f"{name}/y"] = y
    RESULT[f"{name}/hidden"] = last[0] if "lstm" in name else last
    if "lstm" in name:
        RESULT[f"{name}/cell"] = last[1]
case("upsample_bicubic", nn.Upsample(scale_factor=2, mode="bicubic"), torch.randn(1, 2, 3, 4))
case("upsample_bicubic_corners", nn.Upsample(scale_factor=3, mode="bicubic", align_corners=True), torch.randn(2, 1, 4, 3))
case("upsample_exact", nn.Upsample(scale_factor=3, mode="nearest-exact"), torch.randn(1, 2, 3, 4))

checkpoint.save(pathlib.Path(__file__).with_name("nn.safetensors"), {k: v.detach() for k, v in RESULT.items()})
