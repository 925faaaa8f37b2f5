"""What a call costs beyond Dynamo's guards: a model of many small weights, compiled by Kiln and by a backend that computes nothing.

Both are called in turns in one process; the difference of the shortest times is Kiln's own share, its kernel included.
"""

import argparse
import time

import torch
from torch._dynamo.backends.common import aot_autograd


class Sum(torch.nn.Module):
    """A sum of small weights: one kernel, which takes little."""

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(4) for _ in range(weights))

    def forward(self, x):
        for weight in self.weights:
            x = x + weight
        return x


def nothing(module, example_inputs):
    """A backend whose graphs return what was there before."""

    def compile_one(graph, _example_inputs):
        results = [torch.zeros(4)]

        def run(_arguments):
            return results

        run._boxed_call = True
        return run

    return aot_autograd(fw_compiler=compile_one, inference_compiler=compile_one)(module, example_inputs)


def measure(weights, rounds=200, calls=20):
    """Microseconds of a call: by Kiln, and by the backend that computes nothing."""
    model, x = Sum(weights), torch.randn(4)
    ways = [torch.compile(model, backend="kiln")]
    torch._dynamo.reset()
    twin = Sum(weights)
    ways.append(torch.compile(twin, backend=nothing))
    best = [float("inf")] * 2
    with torch.no_grad():
        for way in ways:
            way(x)
        for _ in range(rounds):
            for number, way in enumerate(ways):
                start = time.perf_counter()
                for _ in range(calls):
                    way(x)
                best[number] = min(best[number], (time.perf_counter() - start) / calls)
    return [seconds * 1e6 for seconds in best]


def main(arguments=None):
    """Prints a line for each number of weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", nargs="*", type=int, default=[1, 30, 300])
    for weights in parser.parse_args(arguments).weights:
        torch._dynamo.reset()
        kiln, none = measure(weights)
        print(f"{weights} weights: {kiln:.1f} µs a call, {none:.1f} µs with no kernel: {kiln - none:.1f} µs are Kiln's")
    return 0
