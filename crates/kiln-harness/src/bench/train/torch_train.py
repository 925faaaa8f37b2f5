"""The yardstick for `kiln bench train`: the same models, losses and AdamW in PyTorch, driven line by line.

Reads one JSON request a line, answers one JSON line. Requests:
  {"do": "setup", "case": {"kind": "gpt", ...sizes}, "threads": n, "modes": ["eager", "compile"]}
  {"do": "time", "mode": "eager", "seconds": s}
"""
import time
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, h))
        f = F.gelu(self.up(self.norm2(x)), approximate="tanh" if self.causal else "none")
        return x + self.down(f)


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, context, vocabulary, **_):
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocabulary, hidden))
        self.position = nn.Parameter(torch.empty(context, hidden))
        self.blocks = nn.ModuleList(Block(hidden, heads, True) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, y):
        h = F.embedding(x, self.token) + self.position
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.token)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


class Vit(nn.Module):
    def __init__(self, layers, hidden, heads, image, patch, classes, **_):
        super().__init__()
        self.side, self.size = image // patch, patch
        self.patch = nn.Linear(3 * patch * patch, hidden)
        self.position = nn.Parameter(torch.empty(self.side ** 2 + 1, hidden))
        self.register_parameter("class", nn.Parameter(torch.empty(hidden)))
        self.blocks = nn.ModuleList(Block(hidden, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(self, x, y):
        b, s, p = x.shape[0], self.side, self.size
        patches = x.view(b, 3, s, p, s, p).permute(0, 2, 4, 1, 3, 5).reshape(b, s * s, 3 * p * p)
        h = torch.cat((getattr(self, "class").expand(b, 1, -1), self.patch(patches)), 1) + self.position
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h[:, 0])), y)


def build(case):
    """Model and batch of a case, from fixed seeds."""
    sizes = {k: v for k, v in case.items() if k not in ("kind", "batch", "device", "dtype")}
    g = torch.Generator().manual_seed(0)
    model = {"gpt": Gpt, "vit": Vit}[case["kind"]](**sizes)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.zero_()
            elif "norm" not in name:
                p.normal_(0, 0.02, generator=g)
    if case["kind"] == "gpt":
        shape = (case["batch"], case["context"])
        x, y = (torch.randint(0, case["vocabulary"], shape, generator=g) for _ in range(2))
    else:
        x = torch.randn(case["batch"], 3, case["image"], case["image"], generator=g)
        y = torch.randint(0, case["classes"], (case["batch"],), generator=g)
    device = case.get("device", "cpu")
    return model.to(device), x.to(device), y.to(device)


def stepper(case, mode):
    """A function that does one training step."""
    model, x, y = build(case)
    device, dtype = case.get("device", "cpu"), case.get("dtype", "f32")
    short = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    autocast = lambda: torch.autocast(device, short, enabled=dtype != "f32")
    # Of the optimizers PyTorch has, the fastest for the mode: fused for eager; compiled with the loss it is measured against fused.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=mode != "compile_all")
    if mode == "eager":
        def step():
            optimizer.zero_grad(set_to_none=True)
            with autocast():
                loss = model(x, y)
            loss.backward()
            optimizer.step()
            return loss
        return step
    forward = torch.compile(model, dynamic=False)
    update = torch.compile(optimizer.step) if mode == "compile_all" else optimizer.step

    def step():
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = forward(x, y)
        loss.backward()
        update()
        return loss
    return step


steps = {}


def wait():
    """Until the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def setup(request):
    torch.set_num_threads(request["threads"])
    torch._dynamo.reset()
    steps.clear()
    answer = {}
    for mode in request["modes"]:
        steps[mode] = stepper(request["case"], mode)
        begin = time.perf_counter()
        answer[mode + "_loss"] = float(steps[mode]())
        wait()
        answer[mode + "_first_s"] = time.perf_counter() - begin
        for _ in range(3):
            steps[mode]()
    return answer


def measure(request):
    step, samples = steps[request["mode"]], []
    deadline = time.perf_counter() + request["seconds"]
    latest = time.perf_counter() + request["limit"]
    while time.perf_counter() < deadline or len(samples) < 3 or (len(samples) < request["repeats"] and time.perf_counter() < latest):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        samples.append(time.perf_counter() - begin)
    return {"samples_s": samples}


if __name__ == "__main__":
    serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
