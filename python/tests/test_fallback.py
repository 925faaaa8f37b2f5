"""Ops that Kiln lacks."""

import pytest
import torch
from conftest import assert_close, check

import kiln


@torch.no_grad()
def test_an_op_runs_in_pytorch_between_two_programs():
    def function(x):
        y = x.sin() @ x.t()
        values = torch.linalg.eigvalsh(y + y.t())
        return (values * 2).cos(), y + 1

    report = check(function, torch.randn(5, 5), native=False)
    assert report.programs == 2
    assert any("linalg_eigh" in reason and "test_fallback.py" in reason for reason in report.fallbacks)
    assert any(event.kind == "fallback" for event in kiln.events())


OF_DATA = {
    "nonzero": lambda x: (x * 2).nonzero() + 1,
    "masked_select": lambda x: (x * 2).masked_select(x > 0.5).sin(),
    "index": lambda x: (x * 2)[x.sum(1) > 0].cos() @ torch.ones(4, 3),
    "_unique2": lambda x: [part + 1 for part in torch.unique((x * 2).long(), return_inverse=True, return_counts=True)],
    "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).long().flatten()) * 3,
    "repeat_interleave": lambda x: x.sin().repeat_interleave(torch.tensor([2, 0, 1, 3]), 0) * 2,
}


@torch.no_grad()
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("op", OF_DATA)
def test_sizes_that_depend_on_data(op):
    """One graph for whatever number of elements there are, nothing among them."""
    function = OF_DATA[op]
    fast = torch.compile(function, backend="kiln", fullgraph=True)
    for x in (torch.randn(4, 4), torch.randn(4, 4) - 1.5, torch.full((4, 4), -3.0)):
        assert_close(fast(x), function(x))
    report = kiln.report()
    assert report.graphs == 1 and report.refused == 0 and report.programs >= 1, str(report)
    (reason,) = report.fallbacks
    assert f"aten.{op}." in reason and "test_fallback.py" in reason, reason


@torch.no_grad()
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_places_that_are_captured_as_floats():
    """PyTorch captures the places and counts of unique floats as floats, with which what follows would be computed in another dtype."""

    def function(x):
        return [part + 1 for part in torch.unique(x.round(), return_inverse=True, return_counts=True)]

    x = torch.randn(4, 4)
    assert_close(torch.compile(function, backend="kiln", fullgraph=True)(x), function(x))
    assert kiln.report().refused == 1
    kiln.clear_events()
    torch._dynamo.reset()
    check(lambda x: torch.unique(x.round()) + 1, x, native=False)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_gradients_through_a_choice_of_elements():
    def loss(x, w):
        return (x @ w)[x.sum(1) > 0].square().sum()

    w, fast = torch.randn(4, 3, requires_grad=True), torch.compile(loss, backend="kiln", fullgraph=True)
    for x in (torch.randn(6, 4), torch.randn(6, 4)):
        assert_close(torch.autograd.grad(fast(x, w), w), torch.autograd.grad(loss(x, w), w), 1e-4)
    assert kiln.report().graphs == 2 and not kiln.report().refused, str(kiln.report())


@torch.no_grad()
def test_updates_beside_an_op_that_runs_in_pytorch():
    def function(x):
        values = torch.linalg.eigvalsh(x @ x.t())
        x.add_(values.sum())
        return values + x.sum()

    check(function, torch.randn(4, 4), native=False, tolerance=1e-4)


@torch.no_grad()
def test_fullgraph_native_makes_it_an_error():
    compiled = torch.compile(torch.linalg.eigvalsh, backend="kiln", options={"fullgraph_native": True})
    with pytest.raises(Exception, match="linalg_eigh"):
        compiled(torch.eye(3))


def test_an_unknown_option_is_an_error():
    compiled = torch.compile(torch.sin, backend="kiln", options={"fast": True})
    with pytest.raises(Exception, match="no option fast"):
        compiled(torch.ones(3))


@torch.no_grad()
def test_random_numbers_follow_the_seed():
    compiled = torch.compile(lambda: torch.rand(64, 64), backend="kiln", fullgraph=True)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(compiled())
    assert_close(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert abs(draws[0].mean().item() - 0.5) < 0.02 and not torch.equal(compiled(), compiled())


@torch.no_grad()
def test_explain_names_launches_and_lines():
    def function(x):
        return torch.linalg.eigvalsh((x @ x.t()).relu())

    text = kiln.explain(function, torch.randn(3, 3))
    assert "linalg_eigh" in text and "launches" in text and "test_fallback.py" in text
