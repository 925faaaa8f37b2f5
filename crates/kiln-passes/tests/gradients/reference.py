"""Writes the losses and gradients that `pytorch.rs` compares with: a decoder and a convolutional network in float64.

    python reference.py        (PyTorch 2.x; writes decoder.txt and convolutions.txt beside itself)
"""

import math
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def parameter(number, shape):
    """The same formula fills the parameters on the other side."""
    count = math.prod(shape)
    values = [0.4 * math.sin(0.618 * (i + 1) * (number + 1.7)) for i in range(count)]
    return torch.tensor(values).reshape(shape).requires_grad_()


def write(name, loss, parameters):
    loss.backward()
    lines = [f"{loss.item():.15e}"]
    for p in parameters:
        lines.append(" ".join(f"{v:.10e}" for v in p.grad.flatten().tolist()))
    pathlib.Path(__file__).with_name(name).write_text("\n".join(lines) + "\n")


def decoder():
    batch, time, width, heads, groups, vocabulary = 2, 4, 8, 4, 2, 7
    depth = width // heads
    shapes = [(vocabulary, width), (time, width)]
    for _ in range(2):
        shapes += [(width,), (width,), (width + 2 * groups * depth, width), (width, width)]
        shapes += [(width,), (12, width), (12,), (width, 12)]
    shapes += [(width,)]
    p = [parameter(n, s) for n, s in enumerate(shapes)]
    tokens = torch.tensor([[(3 * i + 5 * b) % vocabulary for i in range(time)] for b in range(batch)])
    targets = torch.tensor([[(2 * i + b + 1) % vocabulary for i in range(time)] for b in range(batch)])
    x = F.embedding(tokens, p[0]) + p[1]
    for layer in range(2):
        norm_w, norm_b, qkv, out, rms_w, up, up_bias, down = p[2 + 8 * layer : 10 + 8 * layer]
        h = F.linear(F.layer_norm(x, (width,), norm_w, norm_b, 1e-5), qkv)
        q, k, v = h.split([width, groups * depth, groups * depth], dim=-1)
        q = q.view(batch, time, heads, depth).transpose(1, 2)
        k = k.view(batch, time, groups, depth).transpose(1, 2)
        v = v.view(batch, time, groups, depth).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(batch, time, width), out)
        h = F.linear(F.rms_norm(x, (width,), rms_w, 1e-6), up, up_bias)
        x = x + F.linear(F.gelu(h), down)
    logits = F.linear(F.rms_norm(x, (width,), p[-1], 1e-6), p[0])
    loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1), label_smoothing=0.1)
    write("decoder.txt", loss, p)


def convolutions():
    shapes = [(2, 3, 9, 8), (4, 3, 3, 3), (4,), (4,), (4,), (6, 2, 3, 2), (6, 1, 2, 2), (5, 6), (5,)]
    p = [parameter(n, s) for n, s in enumerate(shapes)]
    x, w1, b1, norm_w, norm_b, w2, w3, w4, b4 = p
    h = F.conv2d(x, w1, b1, padding=1)
    h = F.relu(F.group_norm(h, 2, norm_w, norm_b, 1e-5))
    h = F.max_pool2d(h, 3, stride=2, padding=1)
    h = F.silu(F.conv2d(h, w2, None, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2))
    h = F.conv_transpose2d(h, w3, None, stride=2, padding=1, groups=6)
    h = F.avg_pool2d(h, 2, stride=1, padding=1, count_include_pad=False).amax(dim=(2, 3))
    loss = F.mse_loss(torch.tanh(F.linear(h, w4, b4)), torch.zeros(2, 5), reduction="sum")
    write("convolutions.txt", loss, p)


decoder()
convolutions()
