"""The runners themselves, with backends that PyTorch has: a right one (aot_eager) and wrong ones that they must notice."""

import os
import pathlib
import subprocess
import sys

import hostile_tasks
import pytest
import torch

BED = pathlib.Path(__file__).resolve().parents[1]
if str(BED.parent) not in sys.path:
    sys.path.append(str(BED.parent))

from bed import accuracy, known, measure, ops, page, sample, table, together, workers, zoo  # noqa: E402
from bed.conditions import Conditions  # noqa: E402

OPS = "^(add|amax|argmax|bmm|cat|clamp|cumsum|div.trunc_rounding|exp|flip|gather|masked_select|mean|nonzero|permute|sort|sub|sum|tril|where)$"


def bed(*arguments, **environment):
    command = [sys.executable, str(BED), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def test_a_backend_that_is_not_there_is_exit_code_2():
    ran = bed("zoo", "--backend", "no_such_backend", "--only", "^tv/resnet18$")
    assert ran.returncode == 2, ran.stderr
    assert "no_such_backend" in ran.stderr


def test_three_models(tmp_path):
    pytest.importorskip("transformers")
    out = tmp_path / "zoo.csv"
    ran = bed("zoo", "--backend", "aot_eager", "--against", "none", "--rounds", "1", "--only", "^hf/(bert|opt|vit)$", "--out", out)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 of 3 right" in ran.stdout
    rows = table.read(out)
    assert list(rows[0])[: len(table.DASHBOARD)] == table.DASHBOARD
    for row in rows:
        assert row["accuracy"] == "pass" and row["unique_graphs"] >= 1 and row["speedup"] > 0 and row["first_call_s"] > 0, row
    assert out.with_suffix(".html").read_text().count("<circle") >= 3


def test_twenty_ops(tmp_path):
    out = tmp_path / "ops.jsonl"
    common = ["ops", "--backend", "aot_eager", "--only", OPS, "--dtypes", "float32", "--samples", "2", "--out", out]
    ran = bed(*common)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "(100.00 %)" in ran.stdout and "samples/s" in ran.stdout
    lines = out.read_text().splitlines()
    assert len(lines) == 40
    again = bed(*common, "--resume")
    assert again.returncode == 0 and out.read_text().splitlines() == lines


def _off_by_one(module, inputs):
    return lambda *arguments: [value + 1 if value.is_floating_point() else value for value in module(*arguments)]


def _other_strides(module, inputs):
    return lambda *arguments: [value.mT.contiguous().mT if value.dim() > 1 else value for value in module(*arguments)]


def _other_dtype(module, inputs):
    return lambda *arguments: [value.double() for value in module(*arguments)]


def _raises(module, inputs):
    raise RuntimeError("no such op")


@pytest.mark.parametrize(
    ("wrong", "status", "word"),
    [(_off_by_one, "wrong", "outputs"), (_other_strides, "wrong", "strides"), (_other_dtype, "wrong", "float64"), (_raises, "raised", "no such op")],
)
def test_a_wrong_backend_is_noticed(monkeypatch, wrong, status, word):
    find = sample.backend.find
    monkeypatch.setattr(sample.backend, "find", lambda name: wrong if name == "wrong" else find(name))
    monkeypatch.setattr(sample, "through_dynamo", sample.direct)
    call = sample.Call(torch.exp, (torch.randn(3, 4),), {})
    assert sample.check(call, "aot_eager").status == "right"
    verdict = sample.check(call, "wrong")
    assert verdict.status == status and word in verdict.why, verdict


def _wrong_where_there_are_five_rows(module, inputs):
    return lambda *arguments: [value + 1 if value.shape[0] == 5 else value for value in module(*arguments)]


def test_one_wrong_sample_of_a_graph_of_many_is_found(monkeypatch):
    find = sample.backend.find
    monkeypatch.setattr(sample.backend, "find", lambda name: _wrong_where_there_are_five_rows if name == "wrong" else find(name))
    calls = [(f"sample {rows}", sample.Call(torch.exp, (torch.randn(rows, 2),), {})) for rows in range(1, 20)]
    compiled = []
    direct = sample.direct
    monkeypatch.setattr(sample, "direct", lambda call, name: compiled.append(name) or direct(call, name))
    right = list(together.check_all(calls, "aot_eager", {}))
    assert [name for name, verdict in right if verdict.status == "right"] == [name for name, _ in calls]
    assert len(compiled) == 3
    found = list(together.check_all(calls, "wrong", {}))
    assert [name for name, _ in found] == [name for name, _ in calls]
    assert [name for name, verdict in found if verdict.status != "right"] == ["sample 5"]


def test_a_write_into_an_input_of_one_of_many_is_compared():
    calls = [sample.Call(torch.Tensor.add_, (torch.zeros(3), number), {}) for number in (1, 2)]
    assert together.Together(calls).are_right("aot_eager")
    lost = together.Together([sample.Call(lambda x: x.add_(1), (torch.zeros(3),), {}), calls[1]])
    lost.flat = lambda: lambda x, y: ((x + 1), y.add_(2))
    assert not lost.are_right("aot_eager")


def test_memory_that_nobody_wrote_is_not_compared():
    """Not even where eager happens to find the same there twice."""

    def is_random(function):
        call = sample.Call(function, (torch.randn(4, 3),), {})
        return sample._is_random(call, sample.perform(call.flat(), call.inputs, False))

    for dtype in (torch.bool, torch.int64, torch.float32):
        assert is_random(lambda x: torch.empty_like(x, dtype=dtype))
        assert is_random(lambda x: x.new_empty((2, 2), dtype=dtype))
        assert not is_random(lambda x: torch.empty(3, dtype=dtype).zero_())
    assert not is_random(torch.exp)


def test_a_write_into_an_input_is_compared():
    call = sample.Call(lambda x: x.add_(1), (torch.zeros(3),), {})
    eager = sample.perform(call.flat(), call.inputs, False)
    lost = sample.perform(lambda x: call.flat()(x.clone()), call.inputs, False)
    assert sample.compare(call, eager, eager) == ""
    assert sample.compare(call, eager, lost).startswith("inputs")


def test_noncontiguous_samples_keep_their_strides():
    base = torch.arange(24.0).reshape(4, 6)[:, ::2].t()
    copy = sample.copied(base)
    assert copy.stride() == base.stride() and torch.equal(copy, base) and copy.data_ptr() != base.data_ptr()
    values = [call for _, call in ops.calls(ops.table()["sum"], torch.float32, "noncontiguous", False)]
    assert any(not tensor.is_contiguous() for call in values for tensor in call.inputs)


def test_a_crash_and_a_hang_are_results():
    outcomes = {}
    for outcome in workers.run(["fine", "dies", "hangs", "raises", "long", "also"], hostile_tasks.work, limit=5.0, recycle=10):
        outcomes[outcome.task] = outcome
    assert {task: outcome.status for task, outcome in outcomes.items()} == {
        "fine": "ok", "dies": "crash", "hangs": "timeout", "raises": "raised", "long": "ok", "also": "ok",
    }  # fmt: skip
    assert "SIGABRT" in outcomes["dies"].value and "ValueError: why" in outcomes["raises"].value


def test_a_list_may_only_shrink(tmp_path, capsys):
    path = tmp_path / "list.txt"
    path.write_text("# comment\nadd float32 # rounds\nsort bool # ties\n")
    assert known.read(path) == {"add float32": "rounds", "sort bool": "ties"}
    assert known.judge(path, {"add float32": "x"}, set()) == 0
    assert known.judge(path, {"mul float32": "x"}, set()) == 1
    assert known.judge(path, {}, {"sort bool"}) == 1
    assert known.judge(path, {}, {"sort bool"}, whole=False) == 0
    known.shrink(path, {"sort bool"})
    assert path.read_text() == "# comment\nadd float32 # rounds\n"
    capsys.readouterr()


def test_the_figures_of_a_table():
    rows = [
        {"name": "a", "backend": "b", "accuracy": "pass", "speedup": 2.0, "backend_s": 1.0, "other_backend_s": 10.0, "graph_breaks": 0, "fallback_nodes": 0},
        {"name": "c", "backend": "b", "accuracy": "pass", "speedup": 8.0, "backend_s": 1.0, "other_backend_s": 40.0, "graph_breaks": 1, "fallback_nodes": 3},
        {"name": "d", "backend": "b", "accuracy": "timeout", "why": "<slow>"},
        {"name": "e", "backend": "b", "accuracy": "eager_fail_to_run"},
    ]
    text = "\n".join(zoo.summary(rows))
    assert "2 of 3 right" in text and "4.00×" in text and "20.00×" in text and "1 of 2 without a fallback node" in text
    assert "slower than" not in text
    rows[0].update(speedup=0.5, speedup_over_other=0.9, first_call_s=2.0, other_first_call_s=6.0)
    text = "\n".join(zoo.summary(rows))
    assert "slower than eager: a 0.50×" in text and "slower than the other backend: a 0.90×" in text and "first call, other / this: 3.00×" in text
    shown = page.render(rows, zoo.summary(rows))
    assert "&lt;slow&gt;" in shown and "<script" not in shown
    assert zoo.chosen_names(["a", "b", "c", "ab"], "a|c", "1/2") == ["c"]


def test_large_models_are_a_table_of_their_own():
    ran = bed("zoo", "--large", "--list")
    assert ran.returncode == 0 and "large/bert" in ran.stdout and "hf/" not in ran.stdout, ran.stderr


def test_without_a_source_tree_the_inductor_suite_is_skipped():
    environment = {key: value for key, value in os.environ.items() if key != "KILN_PYTORCH_SRC"}
    ran = subprocess.run([sys.executable, str(BED), "inductor", "--backend", "aot_eager"], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0 and "skipped: KILN_PYTORCH_SRC" in ran.stdout


@pytest.mark.parametrize("channels", [(32, 64), (320, 640, 1280, 1280)])
def test_the_denoiser_without_diffusers_is_that_of_diffusers(channels):
    pytest.importorskip("diffusers")
    from bed.models.unet import UNet
    from bed.workloads import unet

    with torch.device("meta" if len(channels) > 2 else "cpu"):
        theirs, ours = unet(channels).eval(), UNet(channels).eval()
    described = {name: value.shape for name, value in ours.state_dict().items()}
    assert described == {name: value.shape for name, value in theirs.state_dict().items()}
    if len(channels) > 2:
        assert sum(value.numel() for value in ours.parameters()) == 859_520_964
        return
    ours.load_state_dict(theirs.state_dict())
    images, texts, time = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 768), torch.tensor([500, 3])
    with torch.no_grad():
        want = theirs(images, time, encoder_hidden_states=texts).sample
        torch.testing.assert_close(ours(images, time, texts)[0], want, rtol=1e-5, atol=1e-5)


class Kink(torch.nn.Module):
    """A gradient that depends on the last place of a weight: x · w − 1 is about zero for one x."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1 / 3]))

    def forward(self, x):
        return torch.relu(x * self.weight - 1) * 100


def test_errors_of_rounding_are_told_from_wrong_ones():
    x = torch.tensor([3.0, 9.0])
    subject = measure.Subject({"model": Kink(), "args": (x,)}, True, "cpu")
    eager, exact = subject.values(subject.model), measure.exact_values(subject, subject.values(subject.model))
    before = subject.model.weight.detach().clone()
    worst = measure.worst_rounding(subject, eager, exact, draws=8)
    assert torch.equal(subject.model.weight, before)
    # Another rounding of the weight is no error, a gradient that is twice as large is one.
    other = min(worst, key=lambda value: value.numel())
    place = next(number for number, value in enumerate(worst) if value is other)
    errors = [accuracy.error([exact[place]], [value[place]]) for value in (eager, worst)]
    assert errors[1] >= errors[0]
    wrong = [value * 2 for value in eager]
    assert not accuracy.agree(worst, wrong, exact)[0] and accuracy.agree(worst, eager, exact)[0] and accuracy.agree(worst, worst, exact)[0]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(2, 3, 1)

    def forward(self, x):
        return self.layer(x) * x.shape[0]


def conditions_of(*arguments):
    return Conditions.of(zoo.arguments([*arguments]))


def test_conditions_of_a_command_line():
    given = conditions_of("--dtype", "bf16", "--dynamic", "--option", "freeze=True", "--option", "numerics=eager")
    assert given.options == (("freeze", True), ("numerics", "eager")) and str(given) == "bf16 dynamic freeze=True numerics=eager"
    assert given.compiled(True) == {"dynamic": True, "options": {"freeze": True, "numerics": "eager"}}
    assert given.compiled(False) == {"dynamic": True} and conditions_of().compiled(True) == {} and str(conditions_of()) == ""
    with pytest.raises(SystemExit, match="NAME=VALUE"):
        conditions_of("--option", "freeze")


def test_models_under_conditions():
    x = torch.randn(2, 2, 4, 5)
    seen = []

    def spy(module, inputs):
        seen.extend(inputs)
        return module

    for arguments in (["--dtype", "bf16", "--channels-last"], ["--autocast"]):
        subject = measure.Subject({"model": Scaled(), "args": (x,)}, False, "cpu", conditions_of(*arguments))
        (out, *_) = subject.values(torch.compile(subject.model, backend=spy))
        assert out.dtype == torch.bfloat16
        assert all(value.dtype == torch.float64 for value in measure.exact_values(subject, subject.values(subject.model)))
    images = [value for value in seen if value.shape == x.shape]
    assert images[0].dtype == torch.bfloat16 and images[0].is_contiguous(memory_format=torch.channels_last)
    assert images[1].dtype == torch.float32 and images[1].is_contiguous()


def test_sizes_that_are_baked_in_are_noticed():
    """A backend that keeps what it saw first, compared with twice the batch."""
    subject = measure.Subject({"model": Scaled(), "args": (torch.randn(2, 2, 4, 5),)}, False, "cpu", conditions_of("--dynamic"))
    row = {}
    assert measure.judge_twice_the_batch(row, subject, subject.model, accuracy.TOLERANCE) == "" and row == {"twice_the_batch": "pass"}
    row = {}
    why = measure.judge_twice_the_batch(row, subject, lambda x: subject.model.layer(x) * 2, accuracy.TOLERANCE)
    assert row["accuracy"] == "fail_accuracy" and why.startswith("with twice the batch")
