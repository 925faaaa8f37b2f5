"""The functions of `kiln bench calls` in PyTorch: almost no work, so that a call is what is measured."""
import time

import torch
import torch.nn as nn


def case(name):
    torch.manual_seed(0)
    draw = lambda: torch.randn(8)
    if name == "one tensor":
        return (lambda x: x * 2 + 1), (draw(),)
    if name == "16 tensors":
        return (lambda *xs: sum(xs[1:], xs[0])), tuple(draw() for _ in range(16))
    if name in ("300 tensors held", "300 variables"):

        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = nn.ParameterList([nn.Parameter(draw(), requires_grad=False) for _ in range(300)])

            def forward(self, x):
                for w in self.weights:
                    x = x + w
                return x

        return Sum(), (draw(),)
    if name == "sizes that change":
        return (lambda x: x * 2 + 1), [(torch.randn(n),) for n in (8, 9, 10, 11)]
    if name == "a branch on data":

        def branch(x):
            y = x * 2
            return y + 1 if (y.sum() > 0).item() else y - 1

        return branch, (draw().abs(),)
    if name == "a variable updated":

        class Counter(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("state", draw())

            def forward(self, x):
                self.state.add_(x)
                return x * 2

        return Counter(), (draw(),)
    raise KeyError(name)


functions = {}


def setup(request):
    torch.set_num_threads(request["threads"])
    f, arguments = case(request["case"]["name"])
    answer = {}
    functions.clear()
    many = arguments if isinstance(arguments, list) else [arguments]
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
        for turn in range(50):
            g(*many[turn % len(many)])
        begin = time.perf_counter()
        spent = lambda: time.perf_counter() - begin
        while spent() < request["seconds"] or len(samples) < 3 or (len(samples) < request["repeats"] and spent() < request["limit"]):
            start = time.perf_counter()
            for turn in range(20):
                g(*many[turn % len(many)])
            samples.append((time.perf_counter() - start) / 20)
    return {"samples_s": samples}


serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
