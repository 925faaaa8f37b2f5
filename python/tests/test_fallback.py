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


@torch.no_grad()
def test_sizes_that_depend_on_data():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        report = check(lambda x: (x * 2).nonzero() + 1, torch.tensor([0.0, 1.0, 2.0]), native=False)
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    assert any("nonzero" in reason for reason in report.fallbacks)


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
