"""What the backend did: compiled graphs, and ops that ran in PyTorch instead."""

import collections
import dataclasses
import logging
import threading

log = logging.getLogger("kiln")

_KEPT = 10_000
_events = collections.deque(maxlen=_KEPT)
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened.

    ``kind`` is ``"compiled"`` (a graph became programs), ``"fallback"`` (an op that Kiln lacks runs in PyTorch), ``"torch_kernel"``
    (an op does because it was measured to be faster there) or ``"refused"`` (a whole graph does); ``graph`` says which graph, ``text``
    what, ``launches`` has a line for each launch of its programs.
    """

    kind: str
    graph: str
    text: str
    launches: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """A summary of all events so far."""

    graphs: int
    programs: int
    launches: int
    fallbacks: dict
    refused: int
    collectives: int = 0
    torch_kernels: dict = dataclasses.field(default_factory=dict)

    def __str__(self):
        lines = [f"{self.graphs} graphs, {self.programs} programs, {self.launches} launches"]
        if self.collectives:
            lines.append(f"{self.collectives} collectives between programs")
        if self.refused:
            lines.append(f"{self.refused} graphs run in PyTorch")
        for reason, count in sorted(self.fallbacks.items(), key=lambda item: -item[1]):
            lines.append(f"{count} × in PyTorch: {reason}")
        for reason, count in self.torch_kernels.items():
            lines.append(f"{count} × by PyTorch's kernel: {reason}")
        return "\n".join(lines)


_totals = collections.Counter()


def emit(kind, graph, text, described="", **totals):
    """Keeps an event and logs it."""
    event = Event(kind, graph, text, described)
    with _lock:
        _events.append(event)
        _totals.update({**totals, "events": 1})
    log.log(logging.WARNING if kind in ("fallback", "refused") else logging.DEBUG, "%s: %s", graph, text)


def events():
    """The latest events, oldest first."""
    with _lock:
        return list(_events)


def clear_events():
    """Forgets all events."""
    with _lock:
        _events.clear()
        _totals.clear()


def report():
    """A summary of the events."""
    with _lock:
        fallbacks = collections.Counter(event.text for event in _events if event.kind == "fallback")
        kernels = collections.Counter(event.text for event in _events if event.kind == "torch_kernel")
        refused = sum(event.kind == "refused" for event in _events)
        totals = dict(_totals)
    return Report(
        graphs=totals.get("graphs", 0),
        programs=totals.get("programs", 0),
        launches=totals.get("launches", 0),
        fallbacks=dict(fallbacks),
        refused=refused,
        collectives=totals.get("collectives", 0),
        torch_kernels=dict(kernels),
    )


def explain(function, *arguments, **keywords):
    """Compiles a function or a module, calls it once, and says what became of it: a text with the launches of every graph and the
    user's lines they come from, and what ran in PyTorch. What was compiled before is compiled again."""
    import torch

    before = _totals["events"]
    torch._dynamo.reset()
    torch.compile(function, backend="kiln")(*arguments, **keywords)
    new = _totals["events"] - before
    lines = []
    for event in events()[-new:] if new else []:
        lines.append(f"{event.graph}: {event.kind}: {event.text}")
        lines.extend(f"  {line}" for line in event.launches.splitlines())
    return "\n".join(lines)
