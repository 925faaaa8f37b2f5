import copy

import pytest
import torch

import kiln


@pytest.fixture(autouse=True)
def fresh():
    """Every test begins without compiled code and without events."""
    torch._dynamo.reset()
    # `dynamic=True` changes this for the time of a call; where several threads call at once, PyTorch may leave it changed.
    torch._dynamo.config.assume_static_by_default = True
    kiln.clear_events()
    torch.manual_seed(0)


def assert_close(got, want, tolerance=2e-5):
    """Equal up to rounding, in dtype, sizes and strides."""
    assert type(got) is type(want) or isinstance(want, torch.Tensor), (type(got), type(want))
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
        strides = [(a, b) for a, b, n in zip(got.stride(), want.stride(), want.shape) if n > 1]
        assert want.numel() == 0 or all(a == b for a, b in strides), (got.stride(), want.stride())
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for one, other in zip(got, want):
            assert_close(one, other, tolerance)
    elif isinstance(want, dict):
        assert_close(list(got.values()), list(want.values()), tolerance)
    else:
        assert got == want


def check(function, *arguments, native=True, tolerance=2e-5, dynamic=None):
    """A function compiled by Kiln gives what it gives without, and changes its arguments alike."""
    mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
    want = function(*theirs)
    compiled = torch.compile(function, backend="kiln", fullgraph=True, dynamic=dynamic)
    got = compiled(*mine)
    assert_close(got, want, tolerance)
    assert_close(mine, theirs, tolerance)
    report = kiln.report()
    assert report.graphs >= 1 and report.refused == 0, str(report)
    if native:
        assert not report.fallbacks, str(report)
    return report


def spy_on_programs(monkeypatch):
    """The programs that are made from now on."""
    from kiln import executor

    programs = []
    finish = executor._finish

    def spy(made, *rest):
        made.programs = [lambda make=make: programs.append(make()) or programs[-1] for make in made.programs]
        return finish(made, *rest)

    monkeypatch.setattr(executor, "_finish", spy)
    return programs
