"""The models of `kiln bench forward` in PyTorch: the same shapes, weights of the same sizes, written as users write them."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Rms(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def norm(c):
    return nn.LayerNorm(c["hidden"]) if c["family"] == "gpt" else Rms(c["hidden"])


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        bias = c["family"] == "gpt"
        self.norm = norm(c)
        self.gate = None if bias else nn.Linear(c["hidden"], c["inner"], bias=False)
        self.up = nn.Linear(c["hidden"], c["inner"], bias=bias)
        self.down = nn.Linear(c["inner"], c["hidden"], bias=bias)

    def forward(self, x):
        h = self.norm(x)
        wide = F.gelu(self.up(h), approximate="tanh") if self.gate is None else F.silu(self.gate(h)) * self.up(h)
        return x + self.down(wide)


def turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        bias, depth = c["family"] == "gpt", c["hidden"] // c["heads"]
        self.heads, self.groups, self.depth = c["heads"], c["groups"], depth
        self.norm = norm(c)
        self.q = nn.Linear(c["hidden"], c["hidden"], bias=bias)
        self.k = nn.Linear(c["hidden"], c["groups"] * depth, bias=bias)
        self.v = nn.Linear(c["hidden"], c["groups"] * depth, bias=bias)
        self.out = nn.Linear(c["hidden"], c["hidden"], bias=bias)

    def forward(self, x, cos=None, sin=None):
        b, t, n = x.shape
        h = self.norm(x)
        q = self.q(h).view(b, t, self.heads, self.depth).transpose(1, 2)
        k = self.k(h).view(b, t, self.groups, self.depth).transpose(1, 2)
        v = self.v(h).view(b, t, self.groups, self.depth).transpose(1, 2)
        if cos is not None:
            q, k = turn(q, cos[:t], sin[:t]), turn(k, cos[:t], sin[:t])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.groups)
        return x + self.out(y.transpose(1, 2).reshape(b, t, n))


class Transformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c["vocabulary"], c["hidden"])
        if c["family"] == "gpt":
            self.positions = nn.Parameter(torch.randn(c["context"], c["hidden"]) * 0.02)
            self.cos = self.sin = None
        else:
            self.positions = None
            half = c["hidden"] // c["heads"] // 2
            angles = torch.arange(c["context"])[:, None] * 10000.0 ** (-torch.arange(half) / half)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
        self.attention = nn.ModuleList(Attention(c) for _ in range(c["layers"]))
        self.mlp = nn.ModuleList(Mlp(c) for _ in range(c["layers"]))
        self.norm = norm(c)
        self.head = nn.Linear(c["hidden"], c["vocabulary"], bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[-1]]
        for attention, mlp in zip(self.attention, self.mlp):
            x = mlp(attention(x, self.cos, self.sin))
        return self.head(self.norm(x))


def model(case):
    """Module and inputs of a model case, or nothing."""
    torch.manual_seed(0)
    kind, tokens = case["kind"], case["shape"][0]
    if kind == "mlp":
        return Mlp(case).eval(), [torch.randn(1, tokens, case["hidden"])]
    if kind == "attention_block":
        return Attention(case).eval(), [torch.randn(1, tokens, case["hidden"])]
    if kind == "transformer":
        return Transformer(case).eval(), [torch.randint(0, case["vocabulary"], (1, tokens))]
    return None


