"""``kiln.explain`` and the events."""

import html

import torch
from torch import nn

import kiln


def broken(x):
    y = (x @ x.t()).relu()
    torch._dynamo.graph_break()
    return torch.linalg.eigvalsh(y).sin() + 1


@torch.no_grad()
def test_graphs_breaks_fallbacks_and_kernels_with_lines():
    explanation = kiln.explain(broken, torch.randn(3, 3))
    assert len(explanation.graphs) == 2
    assert [found.file for found in explanation.breaks] == [__file__]
    assert explanation.breaks[0].line == broken.__code__.co_firstlineno + 2
    assert any("linalg_eigh" in reason and "test_explain.py" in reason for reason in explanation.fallbacks)
    assert all(kernel.seconds > 0 for kernel in explanation.kernels) and explanation.seconds > 0
    lines = [line for kernel in explanation.kernels for line in kernel.lines]
    assert any(line.startswith(f"{__file__}:{broken.__code__.co_firstlineno + 1}") for line in lines)
    for text in ("linalg_eigh", "test_explain.py", "breaks"):
        assert text in str(explanation)


@torch.no_grad()
def test_the_page(tmp_path):
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval()
    explanation = kiln.explain(net, torch.randn(2, 8))
    assert explanation.html.startswith("<!doctype html>") and "Sequential" in explanation.html
    shown = explanation._repr_html_()
    assert shown.startswith("<iframe") and html.escape(explanation.html, quote=True) in shown
    explanation.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == explanation.html


def test_training_is_explained_without_gradients_left():
    net = nn.Linear(8, 8)
    explanation = kiln.explain(torch.compile(net, backend="kiln"), torch.randn(2, 8))
    assert [name.rstrip("0123456789") for name in explanation.graphs] == ["forward", "backward"]
    assert net.weight.grad is None
    assert {kernel.graph.rstrip("0123456789") for kernel in explanation.kernels} == {"forward", "backward"}


def test_a_function_that_kiln_cannot_run_is_explained():
    explanation = kiln.explain(lambda x: x.to_sparse().to_dense(), torch.eye(3))
    assert str(explanation) and explanation.html


@torch.no_grad()
def test_recompiles_are_events_with_the_guard():
    compiled = torch.compile(lambda x, flag: x.sin() if flag else x.cos(), backend="kiln")
    compiled(torch.ones(3), True)
    compiled(torch.ones(3), False)
    reasons = [event.text for event in kiln.events() if event.kind == "recompile"]
    assert len(reasons) == 1 and "flag" in reasons[0]
    assert kiln.report().recompiles == 1
