"""More cases for `make_reference.py`: distributions other than the even and the normal one, tensors without memory or elements, running sums."""

import math

import torch


def of_weights(weights):
    """Mean and variance of the place of an element that is drawn by its weight."""
    total = sum(weights)
    mean = sum(place * weight for place, weight in enumerate(weights)) / total
    return mean, sum((place - mean) ** 2 * weight for place, weight in enumerate(weights)) / total


def write_all(case, random_case):
    """Writes the cases with the two functions of `make_reference.py`."""
    random_case("aten.randint.default", 10, [64, 64], dtype=torch.int64, moments=[(4.5, 8.25, 0, 9)])
    random_case("aten.randint.low", -5, 7, [64, 64], dtype=torch.int32, moments=[(0.5, 143 / 12, -5, 6)])
    random_case("aten.randint_like.default", torch.zeros(64, 64), 6, moments=[(2.5, 35 / 12, 0, 5)])
    random_case("aten.randint_like.low_dtype", torch.zeros(64, 64), 2, 10, dtype=torch.int64, moments=[(5.5, 63 / 12, 2, 9)])
    random_case("aten.random.from", torch.zeros(64, 64), 3, 1000003, moments=[(500002.5, 1e12 / 12, 3, 1000002)])
    random_case("aten.random.to", torch.zeros(64, 64, dtype=torch.int64), 2, moments=[(0.5, 0.25, 0, 1)])
    random_case("aten.randperm.default", 4096, dtype=torch.int64, moments=[(2047.5, (4096**2 - 1) / 12, 0, 4095)])
    weights = [1.0, 0.0, 2.0, 3.0, 4.0, 0.0]
    rows = torch.tensor([weights]).expand(32, 6).contiguous()
    random_case("aten.multinomial.default", rows, 128, True, moments=[(*of_weights(weights), 0, 4)])
    random_case("aten.multinomial.default", torch.tensor(weights), 4096, True, moments=[(*of_weights(weights), 0, 4)])
    rows = torch.tensor([weights]).expand(2048, 6).contiguous()
    random_case("aten.multinomial.default", rows, 1, False, moments=[(*of_weights(weights), 0, 4)])
    # All that have a weight are drawn.
    random_case("aten.multinomial.default", rows[:128], 4, False, moments=[(*of_weights([1, 0, 1, 1, 1]), 0, 4)])
    random_case("aten.exponential.default", torch.zeros(64, 64), 2.0, moments=[(0.5, 0.25, 1e-30, 20)])
    random_case("aten.geometric.default", torch.zeros(64, 64), 0.3, moments=[(1 / 0.3, 0.7 / 0.09, 1, 100)])
    square = math.exp(0.0625)
    random_case("aten.log_normal.default", torch.zeros(64, 64), 0.0, 0.25, moments=[(math.sqrt(square), (square - 1) * square, 0.1, 10)])
    case("aten.cauchy.default", torch.zeros(8, 8), undefined=[0])
    case("aten._efficientzerotensor.default", [2, 3])
    case("aten._efficientzerotensor.default", [2], dtype=torch.complex64)
    far = torch.tensor([[-1e9, -800.0, 2.0, 3.0], [0.5, math.inf, 1.0, math.nan], [-math.inf, 0.25, 0.25, -2.0]])
    case("aten.logcumsumexp.default", far, 1)
    case("aten.logcumsumexp.default", far[:, :3].bfloat16(), 0)
    case("aten.logcumsumexp.default", torch.tensor(2.5), -1)
