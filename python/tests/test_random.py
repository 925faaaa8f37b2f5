"""Random numbers: they follow ``torch.manual_seed``, have the distribution that the op says, and nothing of them runs in PyTorch."""

import pytest
import torch

import kiln

DRAWS = {
    "randint": lambda x: torch.randint(-3, 11, (50, 40)),
    "randint_like": lambda x: torch.randint_like(x, 7),
    "randperm": lambda x: torch.randperm(2000),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 5),
    "multinomial_of_one": lambda x: torch.multinomial(x.softmax(-1), 1),
    "multinomial_with_replacement": lambda x: torch.multinomial(x.softmax(-1), 60, replacement=True),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.25),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(0.0, 0.5),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(1.0, 3.0),
    "gumbel_softmax": lambda x: torch.nn.functional.gumbel_softmax(x, hard=True),
}


@pytest.mark.parametrize("name", DRAWS)
@torch.no_grad()
def test_draws_follow_the_seed_and_run_in_kiln(name):
    x = torch.randn(50, 40)
    draw = torch.compile(DRAWS[name], backend="kiln", fullgraph=True, options={"fullgraph_native": True, "fallback_random": False})
    torch.manual_seed(7)
    first, second = draw(x), draw(x)
    torch.manual_seed(7)
    again = draw(x)
    eager = DRAWS[name](x)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert first.dtype == eager.dtype and first.shape == eager.shape and first.stride() == eager.stride()
    assert not kiln.report().fallbacks


@torch.no_grad()
def test_ranges_and_distributions():
    drawn = {}
    for name, draw in DRAWS.items():
        torch.manual_seed(11)
        drawn[name] = torch.compile(draw, backend="kiln", options={"fallback_random": False})(torch.zeros(50, 40))
    assert drawn["randint"].unique().tolist() == list(range(-3, 11))
    assert drawn["randint_like"].unique().tolist() == list(range(7))
    assert torch.equal(drawn["randperm"].sort().values, torch.arange(2000))
    # Without replacement no element is drawn twice.
    assert all(row.unique().numel() == 5 for row in drawn["multinomial"])
    assert abs(drawn["exponential_"].mean() - 0.5) < 0.05 and drawn["exponential_"].min() > 0
    assert abs(drawn["geometric_"].mean() - 4) < 0.4 and drawn["geometric_"].min() == 1
    assert abs(drawn["log_normal_"].log().std() - 0.5) < 0.05
    # A Cauchy distribution has quartiles, one scale from its median, and no mean.
    quartiles = torch.quantile(drawn["cauchy_"], torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-2.0, 1.0, 4.0]), atol=0.5, rtol=0)


@torch.no_grad()
def test_multinomial_follows_its_weights():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 6.0, 0.0])
    for draw in (lambda w: torch.multinomial(w, 20000, replacement=True), lambda w: torch.multinomial(w.expand(20000, 6), 1)):
        torch.manual_seed(3)
        drawn = torch.compile(draw, backend="kiln", options={"fallback_random": False})(weights)
        shares = torch.bincount(drawn.flatten(), minlength=6) / 20000
        torch.testing.assert_close(shares, weights / 10, atol=0.015, rtol=0)
        assert (shares[weights == 0] == 0).all()


@torch.no_grad()
def test_fallback_random_gives_the_numbers_of_eager():
    for name in ("randint", "randperm", "multinomial", "exponential_"):
        x = torch.randn(50, 40)
        torch.manual_seed(5)
        want = DRAWS[name](x)
        torch.manual_seed(5)
        assert torch.equal(torch.compile(DRAWS[name], backend="kiln", options={"fallback_random": True})(x), want)


@torch.no_grad()
def test_sizes_that_are_not_known():
    fast = torch.compile(lambda x: torch.randint(0, x.shape[0], (x.shape[0],)) + torch.randperm(x.shape[0]), backend="kiln", dynamic=True)
    for rows in (5, 9, 30):
        drawn = fast(torch.zeros(rows, 2))
        assert drawn.shape == (rows,) and drawn.min() >= 0 and drawn.max() <= 2 * rows - 2
    assert not kiln.report().fallbacks and kiln.report().graphs == 1
