"""``kiln.explain`` and the events."""

import html

import pytest
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


@torch.no_grad()
def test_options_of_an_explanation():
    net = nn.Linear(64, 64).eval()
    x = torch.randn(256, 64)
    plain = kiln.explain(net, x)
    assert plain.options == kiln.Options() and "options:" not in str(plain)
    verified = kiln.explain(net, x, options={"verify": True, "freeze": True})
    assert verified.options == kiln.Options(verify=True, freeze=True)
    assert "options: verify=True, freeze=True" in str(verified) and "verify=True" in verified.html
    assert "verified" in [event.kind for event in verified.events] and "verified" not in [event.kind for event in plain.events]
    tuned = kiln.explain(net, x, mode="max-autotune", options={"tuning_seconds": 0.2})
    assert tuned.options.tunes and "tuned" in [event.kind for event in tuned.events]
    with pytest.raises(ValueError, match="no option fast"):
        kiln.explain(net, x, options={"fast": True})


def in_place(net, **given):
    net.compile(backend="kiln", **given)
    return net


@torch.no_grad()
@pytest.mark.parametrize(
    "compiled", [torch.compile, in_place, lambda net, **given: torch.compile(net.forward, **given)], ids=["model", "in place", "function"]
)
def test_what_was_compiled_is_explained_with_its_own_options(compiled):
    class Net(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    net = Net(nn.Linear(8, 8)).eval()
    given = {} if compiled is in_place else {"backend": "kiln"}
    fast = compiled(net, options={"verify": True, "numerics": "eager"}, dynamic=True, **given)
    explanation = kiln.explain(fast, torch.randn(3, 8))
    assert explanation.options == kiln.Options(verify=True, numerics="eager")
    assert len(explanation.graphs) == 1 and explanation.kernels
    # Others may be asked for.
    assert kiln.explain(fast, torch.randn(3, 8), options={}).options == kiln.Options()
    # It is as compiled as before.
    kiln.clear_events()
    fast(torch.randn(4, 8))
    fast(torch.randn(5, 8))
    assert kiln.report().graphs == 1, str(kiln.report())


def test_the_mode_of_another_backend_is_not_kilns():
    fast = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    assert kiln.explain(fast, torch.randn(3, 8)).options == kiln.Options()


@torch.no_grad()
def test_an_explanation_has_the_numbers_of_its_function_alone():
    torch.compile(torch.sin, backend="kiln")(torch.ones(3))
    explanation = kiln.explain(broken, torch.randn(3, 3))
    report = explanation.report
    assert (report.graphs, report.graph_breaks, report.refused, sum(report.fallbacks.values())) == (2, 1, 0, 1), str(report)
    assert report.launches == len(explanation.kernels) and report.programs >= 2
    assert str(report).splitlines()[0] in str(explanation)


@torch.no_grad()
def test_an_op_that_has_to_be_native_is_an_error_of_the_explanation():
    with pytest.raises(Exception, match="linalg_eigh"):
        kiln.explain(torch.compile(torch.linalg.eigvalsh, backend="kiln", options={"fullgraph_native": True}), torch.eye(3))
