"""What PyTorch's autocast makes of types and numbers on the CPU: writes autocast.txt (op, type of the result for f32 and for bf16 operands) and
autocast.safetensors (a training step of a small network in a bf16 region). Run: python autocast.py"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
torch.manual_seed(7)
OPS = {
    "matmul": lambda x: x @ x, "bmm": lambda x: torch.bmm(x[None], x[None]), "linear": lambda x: F.linear(x, x), "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]), "conv2d": lambda x: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "conv3d": lambda x: F.conv3d(x[None, :, :, None, None], x[:, :, None, None, None]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[None], x[:, :, None]), "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, :, :, None], x[:, :, None, None]),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (4,)), "group_norm": lambda x: F.group_norm(x[None], 2),
    "exp": torch.exp, "log": torch.log, "rsqrt": torch.rsqrt, "recip": torch.reciprocal, "pow": lambda x: x.pow(2.5), "tanh": torch.tanh, "gelu": F.gelu, "softplus": F.softplus,
    "sum": lambda x: x.sum(), "mean": lambda x: x.mean(), "prod": lambda x: x.prod(), "cumsum": lambda x: x.cumsum(0), "norm": lambda x: x.norm(), "logsumexp": lambda x: x.logsumexp(0),
    "mse_loss": lambda x: F.mse_loss(x, x), "l1_loss": lambda x: F.l1_loss(x, x), "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x), "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], 2), "avg_pool2d": lambda x: F.avg_pool2d(x[None, None], 2), "avg_pool3d": lambda x: F.avg_pool3d(x[None, None, None], (1, 2, 2)),
    "max_pool3d": lambda x: F.max_pool3d(x[None, None, None], (1, 2, 2)), "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x[None, None, None], (1, 2, 2)),
    "interpolate_nearest": lambda x: F.interpolate(x[None, None], (8, 8)), "interpolate_linear": lambda x: F.interpolate(x[None, None], (8, 8), mode="bilinear"),
    "pad_axis": lambda x: F.pad(x[None], (1, 1), mode="reflect"), "add": lambda x: x + 1.0, "add_mixed": lambda x: x + torch.ones(4), "concat_mixed": lambda x: torch.cat([x, torch.ones(4, 4)]),
}
short = {torch.float32: "f32", torch.bfloat16: "bf16"}
with torch.autocast("cpu", torch.bfloat16), open(here / "autocast.txt", "w") as out:
    for name, op in OPS.items():
        kinds = []
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.rand(4, 4).add(0.5).to(dtype)
            kinds.append(short[op(x).dtype])
        print(name, *kinds, file=out)

w1, b1 = torch.randn(16, 8, requires_grad=True), torch.randn(16, requires_grad=True)
gain, w2 = torch.rand(16, requires_grad=True), torch.randn(3, 16, requires_grad=True)
x, labels = torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0])
with torch.autocast("cpu", torch.bfloat16):
    hidden = F.layer_norm(F.gelu(F.linear(x, w1, b1)), (16,), gain)
    loss = F.cross_entropy(F.linear(hidden, w2), labels)
loss.backward()
save_file({"x": x, "labels": labels, "w1": w1.detach(), "b1": b1.detach(), "gain": gain.detach(), "w2": w2.detach(), "loss": loss.detach(),
           "dw1": w1.grad, "db1": b1.grad, "dgain": gain.grad, "dw2": w2.grad}, here / "autocast.safetensors")
