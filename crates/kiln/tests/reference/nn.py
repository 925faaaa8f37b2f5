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

checkpoint.save(pathlib.Path(__file__).with_name("nn.safetensors"), {k: v.detach() for k, v in RESULT.items()})
