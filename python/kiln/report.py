"""What the backend did: compiled graphs, and ops that ran in PyTorch instead."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any

from . import _kiln

log = logging.getLogger("kiln")

_KEPT = 10_000
# Lists of launches are long: only the latest are kept.
_DESCRIBED = 256
_events: collections.deque[Event] = collections.deque(maxlen=_KEPT)
_lock = threading.Lock()

# What is worth a line without being asked for.
_LOUD = frozenset({"fallback", "refused", "slower"})


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened.

    ``kind`` is

    - ``"compiled"`` (a graph became programs), and ``"cache_hit"`` if all of them were in the disk cache;
    - ``"fallback"`` (an op that Kiln lacks runs in PyTorch), ``"torch_kernel"`` (an op does because it was measured to be faster
      there) or ``"refused"`` (a whole graph does);
    - ``"recompile"`` (Dynamo captures a function again: ``text`` is the guard that failed) or ``"graph_break"``;
    - ``"verified"``, ``"tuned"``, ``"faster"``, ``"slower"`` and ``"background"``: outcomes of the options of these names;
    - ``"remark"``: anything else.

    ``graph`` says which graph, ``text`` what, ``launches`` has a line for each launch of its programs.
    """

    kind: str
    graph: str
    text: str
    launches: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """A summary of all events so far. ``fallbacks`` and ``torch_kernels`` count nodes by reason."""

    graphs: int
    programs: int
    launches: int
    fallbacks: dict[str, int]
    refused: int
    collectives: int = 0
    torch_kernels: dict[str, int] = dataclasses.field(default_factory=dict)
    kernels_compiled: int = 0
    cache_hits: int = 0
    recompiles: int = 0
    graph_breaks: int = 0

    def __str__(self) -> str:
        lines = [f"{self.graphs} graphs, {self.programs} programs, {self.launches} launches"]
        if self.cache_hits:
            lines.append(f"{self.cache_hits} graphs from the disk cache")
        if self.collectives:
            lines.append(f"{self.collectives} collectives between programs")
        if self.graph_breaks or self.recompiles:
            lines.append(f"{self.graph_breaks} graph breaks, {self.recompiles} recompiles")
        if self.refused:
            lines.append(f"{self.refused} graphs run in PyTorch")
        for reason, count in sorted(self.fallbacks.items(), key=lambda item: -item[1]):
            lines.append(f"{count} × in PyTorch: {reason}")
        for reason, count in self.torch_kernels.items():
            lines.append(f"{count} × by PyTorch's kernel: {reason}")
        return "\n".join(lines)


_totals: collections.Counter[str] = collections.Counter()
_listens = False


def emit(kind: str, graph: str, text: str, described: str = "", **totals: int) -> None:
    """Keeps an event and logs it."""
    event = Event(kind, graph, text, described)
    with _lock:
        _events.append(event)
        if len(_events) > _DESCRIBED:
            old = len(_events) - _DESCRIBED
            _events[old] = dataclasses.replace(_events[old], launches="")
        _totals.update({**totals, "events": 1})
    log.log(logging.WARNING if kind in _LOUD else logging.DEBUG, "%s: %s: %s", graph, kind, text)


def log_runtime() -> None:
    """Logs what the runtime said meanwhile, by category: ``kiln.kernels``, ``kiln.cache``, ``kiln.fusion`` and ``kiln.perf``."""
    global _listens
    for category, text in _kiln.heard():
        log.getChild(category).debug("%s", text)
    wanted = any(log.getChild(name).isEnabledFor(logging.DEBUG) for name in ("kernels", "cache", "fusion", "perf"))
    if wanted != _listens:
        _listens = wanted
        _kiln.listen(wanted)


def events() -> list[Event]:
    """The latest events, oldest first."""
    with _lock:
        return list(_events)


def count() -> int:
    """How many events there were."""
    return _totals["events"]


def events_since(before: int) -> list[Event]:
    """The events after the first ``before`` of them, as far as they are kept."""
    new = count() - before
    return events()[-new:] if new > 0 else []


def clear_events() -> None:
    """Forgets all events."""
    with _lock:
        _events.clear()
        _totals.clear()


def totals() -> collections.Counter[str]:
    """The sums of what events count, so far."""
    with _lock:
        return collections.Counter(_totals)


def summary(events: Collection[Event], counted: Mapping[str, int]) -> Report:
    """A summary of some events, and of what they count."""
    kinds = collections.Counter(event.kind for event in events)

    def by_text(kind: str) -> dict[str, int]:
        return dict(collections.Counter(event.text for event in events if event.kind == kind))

    return Report(
        graphs=counted.get("graphs", 0),
        programs=counted.get("programs", 0),
        launches=counted.get("launches", 0),
        fallbacks=by_text("fallback"),
        refused=kinds["refused"],
        collectives=counted.get("collectives", 0),
        torch_kernels=by_text("torch_kernel"),
        kernels_compiled=counted.get("kernels_compiled", 0),
        cache_hits=kinds["cache_hit"],
        recompiles=kinds["recompile"],
        graph_breaks=kinds["graph_break"],
    )


def report() -> Report:
    """A summary of the events."""
    with _lock:
        return summary(_events, dict(_totals))
