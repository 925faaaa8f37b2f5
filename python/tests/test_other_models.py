"""Small models of kinds that the test bed's table has not: forward and as a training step against eager, with what runs in PyTorch."""

import math

import pytest
import torch
from conftest import assert_close
from torch import nn

import kiln

F = nn.functional


class Tagger(nn.Module):
    """A bidirectional LSTM and a GRU over words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(24, 10, batch_first=True)
        self.tags = nn.Linear(10, 5)

    def forward(self, words):
        x, (hidden, _) = self.lstm(self.words(words))
        x, _ = self.gru(x)
        return self.tags(x) + hidden.mean()

    @staticmethod
    def inputs():
        return (torch.randint(0, 50, (3, 7)),)


class Recommender(nn.Module):
    """Bags of categories beside numbers, and products of all pairs (DLRM)."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(size, 8, mode=mode) for size, mode in ((20, "sum"), (30, "mean"))])
        self.below = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(8 + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers, indices, offsets):
        x = self.below(numbers)
        rows = torch.stack([x, *(bag(index, offset) for bag, index, offset in zip(self.bags, indices, offsets))], 1)
        pairs = rows @ rows.transpose(1, 2)
        first, second = torch.tril_indices(3, 3, -1)
        return self.above(torch.cat([x, pairs[:, first, second]], 1)).sigmoid()

    @staticmethod
    def inputs():
        offsets = torch.tensor([0, 3, 3, 7])
        return torch.randn(4, 13), [torch.randint(0, 20, (10,)), torch.randint(0, 30, (10,))], [offsets, offsets]


class Graph(nn.Module):
    """Messages along edges: summed, their largest, and attention over the edges of a node."""

    def __init__(self):
        super().__init__()
        self.message, self.update, self.score = nn.Linear(20, 16), nn.Linear(48, 8), nn.Linear(16, 1)

    def forward(self, nodes, edges, features):
        source, target = edges
        message = self.message(torch.cat([nodes[source], nodes[target], features], 1)).relu()
        count = nodes.shape[0]
        summed = nodes.new_zeros(count, 16).index_add(0, target, message)
        largest = nodes.new_full((count, 16), -10.0).scatter_reduce(0, target[:, None].expand_as(message), message, "amax")
        score = self.score(message).squeeze(1)
        top = score.new_full((count,), -math.inf).scatter_reduce(0, target, score, "amax")
        share = (score - top.detach()[target]).exp()
        share = share / score.new_zeros(count).scatter_add(0, target, share)[target]
        felt = nodes.new_zeros(count, 16).scatter_add(0, target[:, None].expand_as(message), message * share[:, None])
        return self.update(torch.cat([summed, largest, felt], 1)) + nodes

    @staticmethod
    def inputs():
        return torch.randn(6, 8), torch.randint(0, 6, (2, 15)), torch.randn(15, 4)


def segment_sums(x):
    """Sums of x over every span that ends at a place and begins at another."""
    size = x.shape[-1]
    x = x[..., None].expand(*x.shape, size)
    below = torch.tril(torch.ones(size, size, dtype=torch.bool, device=x.device), -1)
    sums = torch.cumsum(x.masked_fill(~below, 0), -2)
    return sums.masked_fill(~torch.tril(torch.ones_like(below)), -math.inf)


class StateSpace(nn.Module):
    """A scan by chunks, as Mamba-2 has it, behind a causal convolution, and a gated norm."""

    def __init__(self, heads=2, width=8, states=4, chunk=4):
        super().__init__()
        self.heads, self.width, self.states, self.chunk = heads, width, states, chunk
        inner = heads * width
        self.into = nn.Linear(16, 2 * inner + 2 * states + heads)
        self.conv = nn.Conv1d(inner + 2 * states, inner + 2 * states, 3, groups=inner + 2 * states, padding=2)
        self.decay, self.step_bias = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.randn(heads))
        self.norm, self.out = nn.RMSNorm(inner), nn.Linear(inner, 16)

    def forward(self, x):
        batch, length, _ = x.shape
        inner = self.heads * self.width
        gate, x, step = self.into(x).split([inner, inner + 2 * self.states, self.heads], -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        x, b, c = x.split([inner, self.states, self.states], -1)
        step = F.softplus(step + self.step_bias)
        x = x.view(batch, -1, self.chunk, self.heads, self.width) * step.view(batch, -1, self.chunk, self.heads, 1)
        b, c = (part.view(batch, -1, self.chunk, self.states) for part in (b, c))
        a = (-self.decay.exp() * step).view(batch, -1, self.chunk, self.heads).permute(0, 3, 1, 2)
        along = a.cumsum(-1)
        inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, segment_sums(a).exp(), x)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, (along[..., -1:] - along).exp(), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        passed = segment_sums(F.pad(along[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", passed, states)[:, :-1]
        y = inside + torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, along.exp())
        return self.out(self.norm(y.reshape(batch, length, inner)) * F.silu(gate))

    @staticmethod
    def inputs():
        return (torch.randn(2, 12, 16),)


class LinearAttention(nn.Module):
    """A state that decays from token to token, with tokens mixed with those before them (RWKV)."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, 16))
        self.r, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.decay, self.first = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        r, k, v = (layer(torch.lerp(before, x, mix)) for layer, mix in zip((self.r, self.k, self.v), self.mix))
        high = torch.full_like(x[:, 0], -1e38)
        above = below = torch.zeros_like(x[:, 0])
        found = []
        for step in range(x.shape[1]):
            key, value = k[:, step], v[:, step]
            top = torch.maximum(high, self.first + key)
            old, new = (high - top).exp(), (self.first + key - top).exp()
            found.append((old * above + new * value) / (old * below + new))
            top = torch.maximum(high - self.decay.exp(), key)
            old, new = (high - self.decay.exp() - top).exp(), (key - top).exp()
            above, below, high = old * above + new * value, old * below + new, top
        y = torch.stack(found, 1) * r.sigmoid()
        return self.out(self.norm(y.transpose(1, 2)).transpose(1, 2))

    @staticmethod
    def inputs():
        return (torch.randn(2, 9, 16),)


class Fourier(nn.Module):
    """Products with complex weights of low frequencies (FNO)."""

    def __init__(self):
        super().__init__()
        self.into, self.beside, self.out = nn.Conv2d(1, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 1, 1)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6, 3, 3, dtype=torch.complex64) / 6) for _ in range(2)])

    def forward(self, x):
        x = self.into(x)
        waves = torch.fft.rfft2(x, norm="ortho")
        kept = torch.zeros_like(waves)
        kept[..., :3, :3] = torch.einsum("bixy,ioxy->boxy", waves[..., :3, :3], self.weights[0])
        kept[..., -3:, :3] = torch.einsum("bixy,ioxy->boxy", waves[..., -3:, :3], self.weights[1])
        return self.out(F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho") + self.beside(x)))

    @staticmethod
    def inputs():
        return (torch.randn(2, 1, 12, 10),)


class Codec(nn.Module):
    """Convolutions with normed weights, an LSTM, and codes whose residues have codes again (EnCodec)."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.down = nn.Sequential(norm(nn.Conv1d(1, 8, 7, padding=3)), nn.ELU(), norm(nn.Conv1d(8, 16, 4, stride=2, padding=1)), nn.ELU())
        self.lstm = nn.LSTM(16, 16)
        self.books = nn.Parameter(torch.randn(3, 10, 16))
        self.up = nn.Sequential(nn.ELU(), norm(nn.ConvTranspose1d(16, 8, 4, stride=2, padding=1)), nn.ELU(), norm(nn.Conv1d(8, 1, 7, padding=3)))

    def forward(self, sound):
        x = self.down(F.pad(sound, (2, 2), mode="reflect"))
        x = x + self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        rest, found, loss = x.transpose(1, 2), 0, 0
        for book in self.books:
            far = rest.square().sum(-1, keepdim=True) - 2 * rest @ book.t() + book.square().sum(-1)
            code = F.embedding(far.argmin(-1), book)
            loss = loss + F.mse_loss(rest.detach(), code) + F.mse_loss(rest, code.detach())
            found = found + code
            rest = rest - code.detach()
        felt = x + (found.transpose(1, 2) - x).detach()
        return self.up(felt), loss

    @staticmethod
    def inputs():
        return (torch.randn(2, 1, 32),)


class Speech(nn.Module):
    """A loss over all alignments of sounds and letters. Dynamo ends a graph before it, whatever the backend."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 6, 1))

    def forward(self, sound, letters, lengths, counts):
        scores = self.layers(sound).permute(2, 0, 1).log_softmax(-1)
        return F.ctc_loss(scores, letters, lengths, counts, zero_infinity=True)

    @staticmethod
    def inputs():
        return torch.randn(3, 8, 14), torch.randint(1, 6, (3, 4)), (14, 10, 12), (4, 3, 2)


def outcome(net, run, inputs, trains):
    if not trains:
        with torch.no_grad():
            return list(torch.utils._pytree.tree_leaves(run(*inputs)))
    net.zero_grad(set_to_none=True)
    results = torch.utils._pytree.tree_leaves(run(*inputs))
    sum(result.square().mean() for result in results).backward()
    return [result.detach() for result in results] + [p.grad for p in net.parameters() if p.grad is not None]


# What runs in PyTorch, by model.
IN_PYTORCH = {"Tagger": ["mkldnn_rnn_layer"], "Codec": ["mkldnn_rnn_layer"]}


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("kind", [Tagger, Recommender, Graph, StateSpace, LinearAttention, Fourier, Codec, Speech], ids=lambda kind: kind.__name__)
@torch._dynamo.config.patch(allow_rnn=True)
def test_a_model(kind, trains):
    torch.manual_seed(5)
    net = kind().train(trains)
    inputs = kind.inputs()
    want = outcome(net, net, inputs, trains)
    fast = torch.compile(net, backend="kiln", fullgraph=kind is not Speech)
    for _ in range(2):
        assert_close(outcome(net, fast, inputs, trains), want, 2e-4)
    report = kiln.report()
    allowed = IN_PYTORCH.get(kind.__name__, ())
    assert not report.refused and report.graphs == 1 + trains, str(report)
    others = [reason for reason in report.fallbacks if not any(op in reason for op in allowed)]
    assert not others, others


def quantised(x, scale, zero_point, dtype=torch.int8):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(x, scale, zero_point, low, high, dtype)


def dequantised(x, scale, zero_point):
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(x, scale, zero_point, torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max, x.dtype)


@torch.no_grad()
def test_a_quantised_model():
    """An MLP with the ops that PyTorch's quantisation puts around its layers: per tensor, per channel and per token, scales as numbers and
    as tensors."""
    import torch.ao.quantization.fx._decomposed

    ops = torch.ops.quantized_decomposed
    torch.manual_seed(1)
    weight, bias, x = torch.randn(6, 8), torch.randn(6), torch.randn(5, 8)
    scales = weight.abs().amax(1) / 127
    zeros = torch.zeros(6, dtype=torch.int64)
    packed = ops.quantize_per_channel(weight, scales, zeros, 0, -128, 127, torch.int8)

    def model(x, packed, scale, zero):
        x = dequantised(quantised(x, 0.03, -3), 0.03, -3)
        x = F.linear(x, ops.dequantize_per_channel(packed, scales, zeros, 0, -128, 127, torch.int8), bias).relu()
        level = ops.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        x = ops.dequantize_per_tensor.tensor(level, scale, zero, 0, 255, torch.uint8)
        sizes, places = ops.choose_qparams_per_token(x, torch.int8)
        rows = ops.quantize_per_token(x, sizes, places, -128, 127, torch.int8)
        again = ops.quantize_per_channel(weight * 1.1, scales, zeros, 0, -128, 127, torch.int8)
        return level, rows, ops.dequantize_per_token(rows, sizes, places, -128, 127, torch.int8, torch.float32), again

    given = (x, packed, torch.tensor([0.02]), torch.tensor([7]))
    assert_close(torch.compile(model, backend="kiln", fullgraph=True)(*given), model(*given))
    assert kiln.report().graphs == 1 and not kiln.report().fallbacks, str(kiln.report())


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
def test_regions_of_images(trains, aligned):
    """The heads of a detector: means of regions, boxes moved and cut, and the largest kept, which PyTorch chooses."""
    vision = pytest.importorskip("torchvision")
    torch.manual_seed(2)
    net = nn.ModuleDict({"up": nn.Conv2d(4, 6, 1), "scores": nn.Linear(6 * 9, 3), "moves": nn.Linear(6 * 9, 4)})
    corners = torch.rand(7, 2) * 20 - 2
    boxes = torch.cat([torch.randint(0, 2, (7, 1)).float(), corners, corners + torch.rand(7, 2) * 12 - 0.3], 1)

    def heads(images, boxes):
        found = vision.ops.roi_align(net["up"](images), boxes, (3, 3), 0.5, 2, aligned).flatten(1)
        low, high = (boxes[:, 1:] + net["moves"](found)).clamp(0, 20).split(2, 1)
        return net["scores"](found).softmax(1), torch.cat([low, torch.maximum(low, high)], 1)

    images = torch.randn(2, 4, 12, 10)
    want = outcome(net, heads, (images, boxes), trains)
    fast = torch.compile(heads, backend="kiln", fullgraph=True)
    assert_close(outcome(net, fast, (images, boxes), trains), want, 1e-4)
    assert kiln.report().graphs == 1 + trains and not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
def test_boxes_that_overlap_are_left_out():
    vision = pytest.importorskip("torchvision")
    corners = torch.rand(20, 2) * 8

    def keep(corners, scores):
        boxes = torch.cat([corners * 2, corners * 2 + 4], 1)
        kept = vision.ops.nms(boxes, scores * 3, 0.4)
        return boxes[kept] + 1

    scores = torch.rand(20)
    fast = torch.compile(keep, backend="kiln")
    assert_close(fast(corners, scores), keep(corners, scores))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        kiln.clear_events()
        assert_close(torch.compile(keep, backend="kiln", fullgraph=True)(corners, scores), keep(corners, scores))
        report = kiln.report()
        assert report.graphs == 1 and report.programs == 2 and not report.refused, str(report)
        assert any("nms" in reason for reason in report.fallbacks), str(report)
