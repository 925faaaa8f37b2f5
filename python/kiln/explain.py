"""``kiln.explain``: what became of a function, with measured times."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _kiln
from .options import Options
from .report import Event, Report, count, emit, events_since, summary, totals


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A launch: what it computes, its measured time, the least bytes it moves, its operations, and the user's lines it comes from."""

    graph: str
    label: str
    kind: str
    seconds: float
    bytes_read: int
    bytes_written: int
    operations: int
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Break:
    """A place where Dynamo ended a graph."""

    what: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What became of a function. ``str()`` is a text, ``html`` a page that needs nothing else; a notebook shows it inline.

    ``graphs`` are the names of the graphs that ran, ``kernels`` their launches with times, ``breaks`` where Dynamo ended a graph,
    ``fallbacks`` the nodes that run in PyTorch with reasons and lines, ``events`` everything that happened, ``report`` their numbers,
    ``options`` those that it was compiled with.
    """

    name: str
    graphs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    breaks: tuple[Break, ...]
    fallbacks: tuple[str, ...]
    events: tuple[Event, ...]
    seconds: float
    report: Report
    options: Options
    text: str
    html: str

    def __str__(self) -> str:
        return self.text

    def __contains__(self, text: str) -> bool:
        return text in self.text

    def _repr_html_(self) -> str:
        frame = "width:100%;height:720px;border:1px solid #8884;border-radius:6px"
        return f'<iframe srcdoc="{html.escape(self.html, quote=True)}" style="{frame}"></iframe>'

    def save(self, path: str) -> None:
        """Writes the page to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)


class Explainer:
    """Sees programs before they run."""

    def __init__(self) -> None:
        self.programs: list[_Watched] = []
        self.breaks: list[Break] = []

    def watch(self, name: str, program: Any) -> _Watched:
        """The program, explained at its first call."""
        watched = _Watched(name, program)
        self.programs.append(watched)
        return watched

    def add_break(self, what: str, file: str, line: int) -> None:
        self.breaks.append(Break(what, file, line))


class _Watched:
    def __init__(self, name: str, program: Any) -> None:
        self.name = name
        self.program = program
        self.explained: Any = None

    @property
    def draws(self) -> bool:
        return self.program.draws

    def __call__(self, arguments: list[Any], seed: Any = None) -> list[Any]:
        if self.explained is None:
            try:
                self.explained = self.program.explain(arguments, seed)
            except _kiln.Unsupported as error:
                emit("remark", self.name, f"its times were not measured: {error}")
        return self.program(arguments, seed)


def explain(
    function: Callable[..., Any], *arguments: Any, mode: str | None = None, options: Mapping[str, Any] | None = None, **keywords: Any
) -> Explanation:
    """Compiles a function or a module, calls it once, and says what became of it. Where results have gradients, the backward graphs
    are run too, by a backward pass from ones that leaves ``.grad`` alone. What was compiled before is compiled again.

    ``mode`` and ``options`` are those of ``torch.compile``. Of what was compiled by Kiln before they are the ones that it was compiled
    with, ``dynamic=`` too, unless others are given. ``background`` has no effect here.

    >>> print(kiln.explain(model, x))          # graphs, breaks, what runs in PyTorch and why, kernels with times and lines
    >>> kiln.explain(model, x, options={"freeze": True}).save("page.html")
    """
    from .backend import compile_captured

    given, dynamic = _given_before(function)
    if mode is not None or options is not None:
        given = {"mode": mode, "options": options}
    chosen = dataclasses.replace(Options.parse(**given), background=False)
    function = getattr(function, "_orig_mod", None) or getattr(function, "_torchdynamo_orig_callable", None) or function
    name = type(function).__name__ if isinstance(function, torch.nn.Module) else getattr(function, "__name__", "function")
    explainer = Explainer()
    before, counted = count(), totals()
    torch._dynamo.reset()

    def backend(module: Any, example_inputs: Any, **_: Any) -> Any:
        return compile_captured(module, example_inputs, chosen, explainer)

    start = time.perf_counter()
    with _not_compiled_in_place(function):
        results = torch.compile(function, backend=backend, dynamic=dynamic)(*arguments, **keywords)
        _backward(results, function, arguments, keywords)
    seconds = time.perf_counter() - start
    events = tuple(events_since(before))
    report = summary(events, totals() - counted)
    torch._dynamo.reset()
    return _explanation(name, explainer, events, seconds, report, chosen)


def _given_before(function: Any) -> tuple[dict[str, Any], bool | None]:
    """What ``torch.compile`` was given for a function that Kiln has compiled: mode and options, and whether sizes are symbolic."""
    compiled = getattr(function, "_compiled_call_impl", None) if isinstance(function, torch.nn.Module) else None
    compiled = compiled or function
    cells = getattr(compiled, "__closure__", None) or ()
    found = [getattr(compiled, "dynamo_ctx", None), *(cell.cell_contents for cell in cells)]
    for context in found:
        if isinstance(context, torch._dynamo.eval_frame._TorchDynamoContext) and callable(context.callback):
            wrapper = torch._dynamo.eval_frame.innermost_backend(context.callback)
            if getattr(wrapper, "compiler_name", None) == "kiln":
                return dict(wrapper.kwargs), wrapper.dynamic
    return {}, None


@contextlib.contextmanager
def _not_compiled_in_place(function: Any) -> Iterator[None]:
    """Has a module that was compiled in place (``module.compile()``) run as it was before."""
    compiled = getattr(function, "_compiled_call_impl", None) if isinstance(function, torch.nn.Module) else None
    if compiled is None:
        yield
        return
    function._compiled_call_impl = None
    try:
        yield
    finally:
        function._compiled_call_impl = compiled


def _chosen(options: Options) -> list[str]:
    """The options that are not the default, as text."""
    changed = [field for field in dataclasses.fields(options) if getattr(options, field.name) != field.default]
    text = ", ".join(f"{field.name}={getattr(options, field.name)!r}" for field in changed)
    return [f"options: {text}"] if text else []


def _backward(results: Any, function: Any, arguments: Any, keywords: Any) -> None:
    """Runs the backward graphs."""
    tensors = torch.utils._pytree.tree_leaves(results)
    ends = [t for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None and t.dtype.is_floating_point]
    starts = [t for t in torch.utils._pytree.tree_leaves((arguments, keywords)) if isinstance(t, torch.Tensor)]
    if isinstance(function, torch.nn.Module):
        starts += function.parameters()
    starts = [t for t in starts if t.requires_grad]
    if ends and starts:
        torch.autograd.grad(ends, starts, [torch.ones_like(end) for end in ends], allow_unused=True)


def _explanation(
    name: str, explainer: Explainer, events: tuple[Event, ...], seconds: float, report: Report, options: Options
) -> Explanation:
    parts = [(watched.name, watched.explained) for watched in explainer.programs if watched.explained is not None]
    kernels = []
    for graph, part in parts:
        for label, kind, took, read, written, operations, lines in part.kernels():
            kernels.append(Kernel(graph, label, kind, took, read, written, operations, tuple(lines)))
    fallbacks = tuple(event.text for event in events if event.kind in ("fallback", "refused"))
    remarks = _chosen(options) + str(report).splitlines()
    remarks += [f"{event.graph}: {event.kind}: {event.text}" for event in events if event.kind != "recompile"]
    recompiles = [event.text for event in events if event.kind == "recompile"]
    breaks = [(f"breaks: {found.what}", "", found.file, found.line) for found in explainer.breaks]
    if parts:
        text, page = _kiln.page(name, [part for _, part in parts], breaks, recompiles, remarks, [("all of it", seconds)])
    else:
        text = "\n".join([f"{name}: no program of Kiln's ran", *remarks])
        page = f"<!doctype html><html><body><pre>{html.escape(text)}</pre></body></html>"
    graphs = tuple(dict.fromkeys(event.graph for event in events if event.kind in ("compiled", "refused")))
    took = sum(part.seconds() for _, part in parts)
    found = tuple(explainer.breaks)
    return Explanation(name, graphs, tuple(kernels), found, fallbacks, events, took, report, options, text, page)
