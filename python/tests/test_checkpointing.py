"""Activation checkpointing: what a backward graph computes again has the random numbers of the forward graph."""

import copy

import pytest
import torch
from conftest import assert_close
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import backend


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def checkpointed(blocks):
    def function(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    return function


def compiled(function, **options):
    return torch.compile(function, backend="kiln", fullgraph=True, options={"fullgraph_native": True, "fallback_random": False, **options})


@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_that_draws_nothing_is_computed_again_in_kiln(dynamic):
    blocks = nn.ModuleList(Attention() for _ in range(3))
    same = copy.deepcopy(blocks)
    fast = torch.compile(checkpointed(same), backend="kiln", fullgraph=True, dynamic=dynamic, options={"fullgraph_native": True})
    for length in (5, 9):
        x = torch.randn(2, length, 16)
        got, want = fast(x), checkpointed(blocks)(x)
        assert_close(got, want)
        assert_close(
            torch.autograd.grad(got.square().sum(), list(same.parameters())),
            torch.autograd.grad(want.square().sum(), list(blocks.parameters())),
            1e-4,
        )
    assert not kiln.report().fallbacks and not kiln.report().refused, str(kiln.report())


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "feature_dropout": lambda x: F.dropout1d(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.3)),
    "normal_": lambda x: x * torch.empty_like(x).normal_(1.0, 2.0),
    "randint": lambda x: x * torch.randint(0, 3, x.shape),
    "multinomial": lambda x: x[:, :, torch.multinomial(torch.ones(6), 6, replacement=True)],
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.7) * x,
    "rrelu": lambda x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_gradients_are_those_of_the_numbers_that_were_drawn(name):
    """By differences: the seed says what is drawn, so that a function with a fixed seed has derivatives."""
    draw = DRAWS[name]

    def function(x):
        return checkpoint(lambda x: draw(draw(x.sin()).exp() * x), x, use_reentrant=False).square().sum()

    # Where numbers have to be PyTorch's nothing is native.
    fast = torch.compile(function, backend="kiln", fullgraph=True, options={"fallback_random": False})
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(x)

    def value(step):
        torch.manual_seed(5)
        return fast((x + step * direction).detach().requires_grad_())

    torch.manual_seed(5)
    (gradient,) = torch.autograd.grad(fast(x), x)
    step = 1e-6
    difference = (value(step) - value(-step)).detach() / (2 * step)
    assert_close((gradient * direction).sum(), difference, 1e-4)
    if name != "rrelu":
        assert not kiln.report().fallbacks, str(kiln.report())


def test_each_op_and_each_call_draws_other_numbers():
    def function(x):
        return checkpoint(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), x, use_reentrant=False)

    fast = compiled(function)
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(1)
    one, other = fast(x)
    third, _ = fast(x)
    torch.manual_seed(1)
    again, _ = fast(x)
    assert not torch.equal(one, other) and not torch.equal(one, third) and torch.equal(one, again)
    assert 0.4 < (one > 0).float().mean() < 0.6 and 0.15 < ((one > 0) & (other > 0)).float().mean() < 0.35


def test_numbers_of_eager_where_they_are_asked_for():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.GELU()) for _ in range(2))
    x = torch.randn(4, 8, requires_grad=True)
    fast = torch.compile(checkpointed(blocks), backend="kiln", fullgraph=True, options={"fallback_random": True})
    found = []
    for function in (fast, checkpointed(blocks)):
        torch.manual_seed(2)
        out = function(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *blocks.parameters()])])
    assert_close(*found, 1e-4)
    assert kiln.report().fallbacks and not kiln.report().refused, str(kiln.report())


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_op_in_pytorch_draws_what_it_draws_in_a_program(monkeypatch, dynamic):
    """With `background`, or a size that no program takes, one of both graphs may run in PyTorch."""
    graphs = []

    def keep(module, *rest):
        graphs.append(module.graph)
        return compile_graph(module, *rest)

    compile_graph = backend.compile_graph
    monkeypatch.setattr(backend, "compile_graph", keep)
    x = torch.randn(5, 7, requires_grad=True)
    compiled(checkpointed([lambda x: F.dropout(x, 0.5).exp() * torch.randn_like(x)]))(x).sum().backward()
    forward, backward = (sorted(str(node.target) for node in graph.nodes if "seeded" in str(node.target)) for graph in graphs)
    assert forward == backward and len(forward) == 2
    seed, arguments = torch.tensor(123456), {"dropout": (0.5, True), "randn": ()}
    for node in graphs[0].nodes:
        if str(node.target) in forward:
            (rest,) = (rest for name, rest in arguments.items() if name in str(node.target))

            def call(seed, x, target=node.target, rest=rest):
                return target(seed, 32, x, *rest)

            torch._dynamo.reset()
            with torch.no_grad():
                program = torch.compile(call, backend="kiln", dynamic=dynamic, options={"fullgraph_native": True})
                assert_close(call(seed, x.detach()), program(seed, x.detach()), 0.0)


def test_hugging_face_models_checkpoint_their_layers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=32, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).train()
    model.gradient_checkpointing_enable()
    tokens = torch.randint(0, 64, (2, 12))
    fast = torch.compile(model, backend="kiln")
    fast(input_ids=tokens, labels=tokens).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert not kiln.report().fallbacks and not kiln.report().refused, str(kiln.report())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch._dynamo.reset()
    gradients = []
    for function in (model, torch.compile(model, backend="kiln")):
        model.zero_grad()
        function(input_ids=tokens, labels=tokens).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert_close(*gradients, 1e-4)
