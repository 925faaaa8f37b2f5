"""The functions of `kiln bench control` in PyTorch. A sample is one pass over all arguments."""
import time

import torch
import torch.nn.functional as F


def randn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def broken(x):
    y = x * 2 + 1
    return F.gelu(y) * x if (y.sum() > 0).item() else torch.tanh(y) - x


def number(x):
    return (torch.tanh(F.gelu(x) / x.abs().amax().item()) + 1) * x


def masked(x):
    chosen = x[x > 0]
    return torch.tanh(chosen - chosen.mean()).square().mean()


def newton(x):
    root = (x + 1) * 0.5
    while ((root.square() - x).abs().amax() > 1e-4).item():
        root = (root + x / root) * 0.5
    return root


def newton_until(x, tolerance):
    root = (x + 1) * 0.5
    while (root.square() - x).abs().amax().item() > tolerance:
        root = (root + x / root) * 0.5
    return root


def mixture(x, router, up, down):
    scores = (x @ router).softmax(-1)
    gate, expert = scores.max(-1)
    out = torch.zeros_like(x)
    for number in range(8):
        rows = (expert == number).nonzero().squeeze(1)
        own = F.gelu(x[rows] @ up[number]) @ down[number]
        out = out.index_add(0, rows, own * gate[rows].unsqueeze(1))
    return out


def early_exit(x, weights):
    h = x
    for weight in weights:
        h = F.gelu(h @ weight) + h
        if (h.abs().mean() > 1.0).item():
            break
    return h.softmax(-1)


def variational(x, weights):
    h = x
    for weight in weights:
        h = F.gelu(h @ weight) + h + torch.randn_like(h) * 0.1
        if (torch.rand(()) < (h.abs().mean() - 1.0).sigmoid()).item():
            break
    return h.softmax(-1)


def training_step(layer, x):
    with torch.enable_grad():
        loss = layer(x)[0].square().mean()
        loss.backward()
    for weight in layer.parameters():
        weight.sub_(weight.grad, alpha=1e-3)
        weight.grad = None
    return loss


def beam_search(word, table, beams=4, longest=24):
    words = table.shape[0]
    sentences = torch.zeros(beams, longest, dtype=torch.int64)
    scores = torch.where(torch.arange(beams) == 0, 0.0, float("-inf"))
    last, ended = word.expand(beams), torch.zeros(beams, dtype=torch.bool)
    nothing = torch.where(torch.arange(words) == 0, 0.0, float("-inf"))
    count = 0
    while count < longest and not ended[0].item():
        follow = torch.where(ended[:, None], nothing[None], table[last].log_softmax(-1))
        scores, places = (scores[:, None] + follow).flatten().topk(beams)
        parents, last = places // words, places % words
        sentences = sentences[parents]
        sentences[:, count] = last
        ended = ended[parents] | (last == 0)
        count += 1
    return sentences, scores


def byte_pairs(symbols, length, ranks, merged, none=300):
    places = torch.arange(symbols.shape[0])
    while True:
        behind = symbols.roll(-1)
        pairs = symbols * 64 + behind
        rank, place = torch.where(places + 1 < length, ranks[pairs], none).min(0)
        if (rank >= none).item():
            return symbols, length
        rest = torch.where(places == place, merged[pairs], behind)
        symbols, length = torch.where(places < place, symbols, rest), length - 1


def case(name):
    if name == "break, 300 sizes":
        return broken, [(randn((n, 64), n),) for n in range(2, 302)]
    if name == "amax().item()":
        return number, [(randn((256, 256), n),) for n in range(64)]
    if name == "masked_select":
        return masked, [(randn((128, 128), n),) for n in range(64)]
    if name == "sparse MoE":
        layer = lambda rows, columns, first: [randn((rows, columns), first + n) * 0.1 for n in range(8)]
        router, up, down = randn((64, 8), 500), layer(64, 128, 600), layer(128, 64, 700)
        return (lambda x: mixture(x, router, up, down)), [(randn((128, 64), n),) for n in range(64)]
    if name in ("Newton, early exit", "while_loop"):
        return newton, [(randn((4096,), n).abs() + 0.5,) for n in range(64)]
    if name == "Newton, 64 tolerances":
        return newton_until, [(randn((4096,), n).abs() + 0.5, 1e-5 * (1 + n)) for n in range(64)]
    if name == "early-exit network":
        weights = [randn((64, 64), 1000 + n) * 0.15 for n in range(6)]
        return (lambda x: early_exit(x, weights)), [(randn((32, 64), n) * (0.25 + n / 16),) for n in range(64)]
    if name == "variational early exit":
        weights = [randn((64, 64), 1000 + n) * 0.15 for n in range(6)]
        return (lambda x: variational(x, weights)), [(randn((32, 64), n) * (0.25 + n / 16),) for n in range(64)]
    if name == "beam search":
        table = randn((64, 64), 900) * 2.0
        return (lambda word: beam_search(word, table)), [(torch.tensor([n % 64]),) for n in range(64)]
    if name == "byte-pair merges":
        a, b = torch.arange(64)[:, None], torch.arange(64)[None]
        ranks = ((a * 37 + b * 101 + a * b * 13) % 1009).clamp(max=300).flatten()
        merged = ((a * 7 + b * 3 + 1) % 64).flatten()
        place = torch.arange(48)
        words = [((n * 31 + place * (place * 7 + n * 5)) % 64, torch.tensor(16 + n % 33)) for n in range(64)]
        return (lambda symbols, length: byte_pairs(symbols, length, ranks, merged)), words
    if name in ("LSTM, 300 lengths", "GRU, 300 lengths"):
        layer = (torch.nn.LSTM if name.startswith("LSTM") else torch.nn.GRU)(32, 64, batch_first=True)
        return (lambda x: layer(x)[0]), [(randn((8, n, 32), n),) for n in range(1, 301)]
    if name == "LSTM training step":
        layer = torch.nn.LSTM(32, 64, batch_first=True)
        return (lambda x: training_step(layer, x)), [(randn((8, n, 32), n),) for n in range(1, 301)]
    if name == "LSTM of a scan":
        lstm = torch.nn.LSTM(32, 64)
        return (lambda x: lstm(x)[0]), [(randn((n, 8, 32), n),) for n in range(1, 301)]
    raise KeyError(name)


functions = {}


def setup(request):
    torch.set_num_threads(request["threads"])
    f, many = case(request["case"]["name"])
    answer = {}
    functions.clear()
    for mode in request["modes"]:
        torch._dynamo.reset()
        g = f if mode == "eager" else torch.compile(f)
        begin = time.perf_counter()
        with torch.no_grad():
            for one in many:
                g(*one)
        answer[mode + "_first_s"] = time.perf_counter() - begin
        functions[mode] = (g, many)
    return answer


def measure(request):
    g, many = functions[request["mode"]]
    samples = []
    with torch.no_grad():
        begin = time.perf_counter()
        spent = lambda: time.perf_counter() - begin
        while spent() < request["seconds"] or len(samples) < 3 or (len(samples) < request["repeats"] and spent() < request["limit"]):
            start = time.perf_counter()
            for one in many:
                g(*one)
            samples.append(time.perf_counter() - start)
    return {"samples_s": samples}


serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
