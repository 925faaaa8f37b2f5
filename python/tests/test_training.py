"""Gradients and training steps."""

import copy

import pytest
import torch
from conftest import assert_close
from torch import nn

import kiln


def gradients(module, *inputs):
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = module(*inputs)
    result = result if isinstance(result, torch.Tensor) else result[0]
    (result * torch.linspace(-1, 1, result.numel()).view_as(result)).sum().backward()
    parameters = [p.grad for p in module.parameters()] if isinstance(module, nn.Module) else []
    return [x.grad for x in inputs if x.is_floating_point()], parameters, result.detach()


def check(module, *inputs, tolerance=1e-4):
    theirs = copy.deepcopy(module)
    want = gradients(theirs, *inputs)
    got = gradients(torch.compile(module, backend="kiln", fullgraph=True), *inputs)
    parameters = [p.grad for p in module.parameters()] if isinstance(module, nn.Module) else []
    assert_close(got[0], want[0], tolerance)
    assert_close(parameters, want[1], tolerance)
    assert_close(got[2], want[2], tolerance)
    report = kiln.report()
    assert report.graphs == 2 and not report.fallbacks and not report.refused, str(report)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.project(self.norm(x)).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(
    "name",
    ["mlp", "attention", "convolution", "embedding", "softmax", "batch_norm"],
)
def test_gradients_are_those_of_eager(name):
    modules = {
        "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(5, 8)),
        "attention": (Attention(), torch.randn(2, 5, 16)),
        "convolution": (
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3)),
            torch.randn(2, 3, 8, 8),
        ),
        "embedding": (nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)), torch.randint(0, 10, (2, 5))),
        "softmax": (nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1)), torch.randn(3, 6)),
        "batch_norm": (nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()), torch.randn(4, 2, 7)),
    }
    check(*modules[name])


def test_training_steps_follow_eager():
    def train(backend):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = torch.compile(model, backend=backend) if backend else model
        losses = []
        for _ in range(8):
            x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
            loss = nn.functional.cross_entropy(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    assert_close(train("kiln"), train(None), 1e-4)
    assert not kiln.report().fallbacks


def test_dropout_keeps_its_mask_for_the_gradient():
    x = torch.ones(100, 100, requires_grad=True)
    y = torch.compile(lambda x: nn.functional.dropout(x, 0.25) * 3, backend="kiln", fullgraph=True)(x)
    y.sum().backward()
    kept = y != 0
    assert 0.7 < kept.float().mean() < 0.8
    assert_close(x.grad, torch.where(kept, 4.0, 0.0))


def test_a_compiled_optimizer():
    def train(compiled):
        torch.manual_seed(1)
        weights = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step, backend="kiln") if compiled else optimizer.step
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.detach() * 2
            step()
        return [weight.detach() for weight in weights]

    assert_close(train(True), train(False))


@pytest.mark.parametrize("way", [{}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"padding": (1, 0), "groups": 4}, {"padding": 1, "groups": 16}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_convolutions_with_channels_last(way, dtype):
    weight = torch.randn(32, 16 // way.get("groups", 1), 3, 3, dtype=dtype)
    x = torch.randn(3, 16, 13, 18, dtype=dtype)
    laid = [value.contiguous(memory_format=torch.channels_last).requires_grad_() for value in (x, weight)]

    def function(x, weight):
        return torch.nn.functional.conv2d(x, weight, **way)

    fast = torch.compile(function, backend="kiln", fullgraph=True, options={"fullgraph_native": True})
    ahead = torch.randn(function(*laid).shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
    doubles = [value.detach().double().requires_grad_() for value in laid]
    want = torch.autograd.grad(function(*doubles), doubles, ahead.double())
    got = torch.autograd.grad(fast(*laid), laid, ahead)
    tolerance = 2e-1 if dtype == torch.bfloat16 else 1e-3
    assert all(one.dtype == dtype for one in got)
    assert_close([one.double() for one in got], list(want), tolerance)
