"""Nodes that run in PyTorch because its kernel is faster. The times are given by the tests, but for two."""

import json

import pytest
import torch
from conftest import assert_close, check
from torch import nn

import kiln
from kiln import torch_kernels


@pytest.fixture
def times(monkeypatch, tmp_path):
    """An empty table on disk, and times that a test chooses: a list of what was measured, and a function of a node."""
    monkeypatch.setattr(torch_kernels, "_file", lambda: tmp_path / "torch_kernels.jsonl")
    monkeypatch.setattr(torch_kernels.Table, "_tables", {})
    measured = []

    def choose(function):
        def measure(node, options, computed):
            measured.append(node)
            return function(node)

        monkeypatch.setattr(torch_kernels, "measure", measure)
        return measured

    choose.file = tmp_path / "torch_kernels.jsonl"
    return choose


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
    )


def image():
    return torch.randn(1, 3, 56, 56)


@torch.no_grad()
def test_the_faster_kernel_runs(times):
    # Two of the three convolutions have the same sizes.
    measured = times(lambda node: (1e-3, 9e-3) if node.args[0].op != "placeholder" else (9e-3, 1e-3))
    report = check(network().eval(), image())
    assert len(measured) == 2
    assert report.programs == 2 and not report.fallbacks
    assert sum(report.torch_kernels.values()) == 2
    assert all("measured: torch 1.00 ms, kiln 9.00 ms" in text for text in report.torch_kernels)
    assert "by PyTorch's kernel: aten.convolution" in str(report)


@torch.no_grad()
def test_a_close_race_is_kilns(times):
    times(lambda node: (1e-3, 1.1e-3))
    report = check(network().eval(), image())
    assert report.programs == 1 and not report.torch_kernels


@torch.no_grad()
def test_images_are_measured_as_they_lie_in_the_program(monkeypatch, tmp_path):
    """PyTorch's results would have their channels last; what a program computes is row-major there."""
    monkeypatch.setattr(torch_kernels, "_file", lambda: tmp_path / "torch_kernels.jsonl")
    monkeypatch.setattr(torch_kernels.Table, "_tables", {})
    shapes = []

    class Spy(torch_kernels.Lowering):
        def parameter(self, node, fake=None):
            if fake is not None and fake.ndim == 4 and fake.shape[2] == 56:
                shapes.append((node.op, fake.stride(1)))
            super().parameter(node, fake)

    monkeypatch.setattr(torch_kernels, "Lowering", Spy)
    net = network().eval().to(memory_format=torch.channels_last)
    check(net, image().to(memory_format=torch.channels_last))
    assert set(shapes) == {("placeholder", 1), ("call_function", 56 * 56)}
    keys = [json.loads(json.loads(line)[0]) for line in (tmp_path / "torch_kernels.jsonl").read_text().splitlines()]
    assert sorted(dict(key[1])["input"][-1] for key in keys) == [False, True]


@torch.no_grad()
def test_times_are_kept_on_disk(times):
    measured = times(lambda node: (1e-3, 9e-3))
    check(network().eval(), image())
    lines = times.file.read_text().splitlines()
    assert len(measured) == len(lines) == 2
    times.file.write_text("".join(line + "\n" for line in [*lines, "{", '["half'])[:-1])
    # As another process reads them.
    torch_kernels.Table._tables.clear()
    torch._dynamo.reset()
    kiln.clear_events()
    assert sum(check(network().eval(), image()).torch_kernels.values()) == 3
    assert len(measured) == 2
    key, first, second = json.loads(lines[0])
    assert (first, second) == (1e-3, 9e-3) and torch.__version__ in key


@torch.no_grad()
def test_it_can_be_turned_off(times):
    measured = times(lambda node: (1e-3, 9e-3))
    net = network().eval()
    for options in ({"torch_kernels": False}, {"fullgraph_native": True}):
        torch._dynamo.reset()
        x = image()
        assert_close(torch.compile(net, backend="kiln", options=options)(x), net(x))
    assert not measured and not kiln.report().torch_kernels


def test_gradients_by_pytorchs_kernel(times):
    times(lambda node: (1e-3, 9e-3))
    net, x = network(), image()
    twin = torch.compile(net, backend="kiln", fullgraph=True)
    want = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    got = torch.autograd.grad(twin(x).square().sum(), list(net.parameters()))
    assert_close(got, want, 1e-3)
    report = kiln.report()
    assert not report.fallbacks and not report.refused, str(report)
    assert any("convolution_backward" in text for text in report.torch_kernels)


@torch.no_grad()
def test_both_are_measured_on_real_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_kernels, "_file", lambda: tmp_path / "times.jsonl")
    monkeypatch.setattr(torch_kernels.Table, "_tables", {})
    state = torch.get_rng_state()
    net, x = network().eval(), image()
    state = torch.get_rng_state()
    report = check(net, x.to(memory_format=torch.channels_last))
    assert torch.equal(torch.get_rng_state(), state)
    assert not report.fallbacks
    lines = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(0 < seconds < 60 for line in lines for seconds in line[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_attentions_are_measured(times, dtype):
    measured = times(lambda node: (1e-3, 9e-3))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.rise, self.fall = nn.Linear(256, 512), nn.Linear(512, 256)

        def forward(self, x):
            heads = x.unflatten(-1, (4, 64)).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            return self.fall(nn.functional.gelu(self.rise(y.transpose(1, 2).flatten(2))))

    net, x = Block().to(dtype), torch.randn(2, 192, 256, dtype=dtype)
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    with torch.no_grad():
        report = check(net, x, tolerance=tolerance)
    text = str(report)
    assert {str(node.target).split(".")[1] for node in measured} == {"addmm", "_scaled_dot_product_flash_attention_for_cpu"}
    assert sum(report.torch_kernels.values()) == 3 and not report.fallbacks, text
    fast = torch.compile(net, backend="kiln")
    assert_close(torch.autograd.grad(fast(x).sum(), list(net.parameters())), torch.autograd.grad(net(x).sum(), list(net.parameters())), 0.1)
    assert not kiln.report().fallbacks
    assert any("_backward" in str(node.target) for node in measured) is False, "no gradient of the attention's arguments is asked for"


@torch.no_grad()
def test_a_product_of_scaled_integers_is_not_measured(times):
    """Kiln scales them while it reads them; PyTorch would write them out at every call."""
    measured = times(lambda node: (1e-3, 9e-3))
    weight, scale = torch.randint(-127, 127, (512, 512), dtype=torch.int8), torch.rand(512, 1)
    report = check(lambda x: x @ (weight * scale).t(), torch.randn(128, 512), tolerance=1e-3)
    assert not measured and report.programs == 1


@torch.no_grad()
def test_a_product_is_measured_on_real_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_kernels, "_file", lambda: tmp_path / "times.jsonl")
    monkeypatch.setattr(torch_kernels.Table, "_tables", {})
    report = check(nn.Linear(512, 512).bfloat16(), torch.randn(128, 512, dtype=torch.bfloat16), tolerance=5e-2)
    assert not report.fallbacks
    key, first, second = json.loads((tmp_path / "times.jsonl").read_text())
    assert "addmm" in key and 0 < first < 60 and 0 < second < 60
