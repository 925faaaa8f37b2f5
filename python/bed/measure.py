"""One model under one backend: right or not, graphs, first-call time, steady state. Runs in a process of its own."""

import copy
import time

import torch

from . import accuracy, backend, memory, models
from .conditions import Conditions, with_twice_the_batch
from .tensors import copied, mapped, tensors, to_double


class Subject:
    """A model with its inputs, forward or as a training step."""

    def __init__(self, built, train, device, conditions=Conditions()):
        self.conditions, self.device = conditions, device
        self.model = conditions.model(built["model"].to(device).train(train))
        if train:
            switch_dropout_off(self.model)
        self.train, self.loss = train, built.get("loss")
        kwargs = built.get("train_kwargs") or built.get("kwargs", {}) if train else built.get("kwargs", {})
        self.inputs = mapped((tuple(built.get("args", ())), dict(kwargs)), lambda tensor: conditions.input(tensor.to(device)))
        sizes = [tensor.shape[0] for tensor in tensors(self.inputs) if tensor.dim()]
        self.batch_size = sizes[0] if sizes else 1

    def double(self):
        """The same in float64."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).double()
        other.inputs = mapped(self.inputs, to_double)
        other.conditions = Conditions()
        return other

    def of_twice_the_batch(self):
        """The same model with other inputs; None where there is no batch."""
        other = copy.copy(self)
        other.inputs = with_twice_the_batch(self.inputs)
        return other if other.inputs is not None else None

    def call(self, function, inputs):
        """One call, or one training step."""
        args, kwargs = inputs
        if not self.train:
            with torch.no_grad(), self.conditions.call(self.device):
                return function(*args, **kwargs)
        self.model.zero_grad(set_to_none=True)
        with self.conditions.call(self.device):
            output = function(*args, **kwargs)
        self.loss_of(output).backward()
        return output

    def loss_of(self, output):
        """The model's own loss, or one made of its outputs."""
        loss = output.get("loss") if isinstance(output, dict) else None
        if loss is not None:
            return loss.sum()
        floats = [tensor for tensor in tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
        if self.loss == "ce" and floats and floats[0].dim() == 2:
            labels = torch.arange(floats[0].shape[0], device=floats[0].device) % floats[0].shape[1]
            return torch.nn.functional.cross_entropy(floats[0], labels)
        return sum(tensor.square().mean() for tensor in floats)

    def values(self, function, seed=0):
        """All that a call gives: outputs, inputs after it, gradients, buffers. The model is left as it was."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        inputs = mapped(self.inputs, copied)
        torch.manual_seed(seed)
        output = self.call(function, inputs)
        found = tensors(output) + tensors(inputs)
        if self.train:
            found += [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        found = accuracy.on_cpu(found + list(self.model.buffers()))
        with torch.no_grad():
            for buffer, old in zip(self.model.buffers(), before):
                buffer.copy_(old)
        self.model.zero_grad(set_to_none=True)
        return found


def switch_dropout_off(model):
    """Keeps dropout in the graph, with a probability so small that no element is ever dropped."""
    for part in [*model.modules(), *filter(None, (getattr(module, "config", None) for module in model.modules()))]:
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float) and 0 < value < 1:
                setattr(part, name, 1e-30)
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0:
            part.p = 1e-30


def first_call(subject, name, device, afresh=True, is_chosen=False):
    """Compiles and calls once: the compiled function, its values, the seconds. ``afresh`` drops what Dynamo compiled before, and
    ``is_chosen`` says that options are for this backend."""
    if afresh:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    backend.forget(name)
    compiled = backend.compile(subject.model, name, **subject.conditions.compiled(is_chosen))
    wait(device)
    start = time.perf_counter()
    found = subject.values(compiled)
    wait(device)
    return compiled, found, time.perf_counter() - start


def wait(device):
    """Until the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def steady(subject, functions, device, rounds, slice_s):
    """Milliseconds a call of each function, the least of rounds in which they take turns: what others do on the machine only adds."""
    inputs = mapped(subject.inputs, copied)
    calls = {}
    for name, function in functions.items():
        for _ in range(2):
            subject.call(function, inputs)
        wait(device)
        start = time.perf_counter()
        for _ in range(2):
            subject.call(function, inputs)
        wait(device)
        calls[name] = max(1, min(1000, int(slice_s / max((time.perf_counter() - start) / 2, 1e-6))))
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                subject.call(function, inputs)
            wait(device)
            times[name].append((time.perf_counter() - start) / calls[name] * 1e3)
    return {name: min(values) for name, values in times.items()}


def dynamo_counts():
    """Dynamo's own counts since its last reset."""
    counters = torch._dynamo.utils.counters
    return {
        "calls_captured": counters["stats"]["calls_captured"],
        "unique_graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "unique_graph_breaks": len(+counters["graph_break"]),
    }


def prepare():
    """What is done once in a process."""
    backend.prepare()
    return models.load()[0]


def work(table, task):
    """One row of the table, as a dictionary of columns; ``task`` is one of `zoo`."""
    name, device, chosen, against = task["name"], task["device"], task["backend"], task["against"]
    row = {"dev": device, "name": name, "backend": chosen, "conditions": str(task["conditions"])}
    if task.get("threads"):
        torch.set_num_threads(task["threads"])
    if task.get("large"):
        table = models.load_large()
    row["family"] = table[name].family
    torch.manual_seed(0)
    try:
        subject = Subject(table[name].build(), task["train"], device, task["conditions"])
        row["batch_size"] = subject.batch_size
        eager = subject.values(subject.model)
        again = subject.values(subject.model)
    except Exception as error:
        return {**row, "accuracy": "eager_fail_to_run", "why": brief(error)}
    fine, why = accuracy.agree(eager, again, None)
    if not fine:
        return {**row, "accuracy": "eager_two_runs_differ", "why": why}
    # Random numbers have to be eager's where the values depend on them; dropout that drops nothing is compiled.
    other = subject.values(subject.model, seed=1)
    torch._inductor.config.fallback_random = len(eager) != len(other) or not all(map(torch.equal, eager, other))
    exact = exact_values(subject, eager)
    tolerance = accuracy.SHORT_TOLERANCE if task["conditions"].is_short else accuracy.TOLERANCE

    def judge(prefix, found):
        fine, why = accuracy.agree(eager, found, exact, tolerance)
        row[prefix + "accuracy"] = "pass" if fine else "fail_accuracy"
        row[prefix + "error"] = accuracy.error(exact, found)
        return why

    row["eager_error"] = accuracy.error(exact, eager)
    with memory.peak(device) as peak:
        subject.values(subject.model)
    row["eager_peak_mem"] = peak.gigabytes

    functions = {"eager": subject.model}

    def judge_capture():
        try:
            _, found, _ = first_call(subject, "aot_eager", device)
            if task["rounds"]:
                _, found, row["frontend_s"] = first_call(subject, "aot_eager", device)
            judge("aot_eager_", found)
        except Exception as error:
            row["aot_eager_accuracy"] = "fail_to_run"
            row["why"] = "; ".join(filter(None, [row.get("why"), "aot_eager: " + brief(error)]))

    # The first compilation of a process pays for imports and fills caches that all backends share; it is not timed.
    if task["rounds"]:
        judge_capture()
    for other in filter(None, [chosen, against if against != chosen else None]):
        prefix = "" if other == chosen else "other_"
        row[prefix + "backend"] = other
        warm(other)
        try:
            with memory.peak(device) as peak:
                functions[other], found, row[prefix + "first_call_s"] = first_call(subject, other, device, other == chosen, other == chosen)
            why = judge(prefix, found)
            if why and task["train"] and exact is not None and accuracy.agree(worst_rounding(subject, eager, exact), found, exact, tolerance)[0]:
                row[prefix + "accuracy"], why = "pass", f"{ILL_CONDITIONED}: {why}"
        except Exception as error:
            row[prefix + "accuracy"], why = "fail_to_run", brief(error)
            functions.pop(other, None)
        if other == chosen and row["accuracy"] == "pass" and task["conditions"].dynamic:
            why = judge_twice_the_batch(row, subject, functions[other], tolerance)
        if other == chosen:
            row.update(dynamo_counts(), why=why or row.get("why", ""))
            row["dynamo_peak_mem"] = peak.gigabytes
            row["fallback_nodes"], reasons = backend.fallbacks(other)
            row["fallbacks"] = "; ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
    if not task["rounds"] and row.get("accuracy") != "pass":
        judge_capture()
    if task["rounds"] and chosen in functions:
        times = steady(subject, functions, device, task["rounds"], task["slice_s"])
        row.update(eager_ms=times["eager"], abs_latency=times[chosen], other_ms=times.get(against))
    return derived(row)


def judge_twice_the_batch(row, subject, function, tolerance):
    """Compares what was compiled with eager on twice the batch, where the model takes that."""
    other = subject.of_twice_the_batch()
    try:
        eager = other.values(other.model)
        again = other.values(other.model)
    except Exception:
        return ""
    if not accuracy.agree(eager, again, None)[0]:
        return ""
    fine, why = accuracy.agree(eager, other.values(function), exact_values(other, eager), tolerance)
    if fine:
        row["twice_the_batch"] = "pass"
        return ""
    row["accuracy"] = row["twice_the_batch"] = "fail_accuracy"
    return f"with twice the batch: {why}"


# How a row says that eager's error was taken over several roundings of the weights.
ILL_CONDITIONED = "right by eager's error with weights that are rounded otherwise; with the weights as they are"


def worst_rounding(subject, eager, exact, draws=3):
    """Of each of eager's values the one that is furthest from float64, with the weights as they are and with each of them moved by at
    most one unit in its last place. Where one of millions of values is so close to zero that rounding decides its sign, a gradient
    through ``relu`` is another one: eager's error with one rounding says little of how large errors are there."""
    parameters = [parameter for parameter in subject.model.parameters() if parameter.is_floating_point()]
    saved = [parameter.detach().clone() for parameter in parameters]
    worst, errors = list(eager), [accuracy.error([one], [other]) for one, other in zip(exact, eager)]
    try:
        for seed in range(draws):
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter, value in zip(parameters, saved):
                    sign = torch.randint(-1, 2, value.shape, generator=generator).to(value)
                    parameter.copy_(value * (1 + sign * torch.finfo(value.dtype).eps))
            for number, value in enumerate(subject.values(subject.model)):
                error = accuracy.error([exact[number]], [value])
                if number < len(worst) and error > errors[number]:
                    worst[number], errors[number] = value, error
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, saved):
                parameter.copy_(value)
    return worst


def warm(name):
    """Compiles a trifle, so that a backend's imports are not in the first model's time."""
    backend.compile(lambda x: x + 1, name)(torch.ones(3))


def exact_values(subject, eager):
    """The values in float64; None where the model cannot run so."""
    try:
        exact = (double := subject.double()).values(double.model)
    except Exception:
        return None
    if subject.conditions.is_short:
        # Also where a model makes float32 of some: that is more than its own floats have.
        exact = [to_double(value) for value in exact]
    return exact if len(exact) == len(eager) else None


def derived(row):
    """Adds the columns that follow from others."""

    def ratio(above, below):
        if row.get(above) and row.get(below):
            return row[above] / row[below]
        return None

    row["speedup"] = ratio("eager_ms", "abs_latency")
    row["speedup_over_other"] = ratio("other_ms", "abs_latency")
    row["compression_ratio"] = ratio("eager_peak_mem", "dynamo_peak_mem")
    for prefix in ("", "other_"):
        if row.get(prefix + "first_call_s") and row.get("frontend_s"):
            row[prefix + "backend_s"] = max(0.0, row[prefix + "first_call_s"] - row["frontend_s"])
    if row.get("first_call_s"):
        row["compilation_latency"] = row["first_call_s"] - (row.get("abs_latency") or 0.0) / 1e3
    return row


def brief(error):
    """An exception in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
