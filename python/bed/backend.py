"""A backend by name: whether it is there, how it is called, what it reports."""

import importlib
import sys

STAND_INS = ("eager", "aot_eager", "inductor")


class Missing(Exception):
    """The backend cannot be used here."""


def find(name):
    """The function ``backend(gm, inputs)``; raises `Missing` with the reason."""
    import torch

    if name == "kiln":
        try:
            importlib.import_module("kiln")
        except ImportError as error:
            raise Missing(f"the package kiln does not import: {error}") from error
    try:
        return torch._dynamo.lookup_backend(name)
    except Exception as error:
        raise Missing(f"torch.compile has no backend {name!r}: {error}") from error


def require(name):
    """Ends the command with exit code 2 where the backend cannot be used."""
    try:
        find(name)
    except Missing as error:
        print(f"bed: {error}", file=sys.stderr)
        sys.exit(2)


def prepare():
    """Settings under which backends can be compared: random numbers as in eager, nothing taken from a cache on disk."""
    import torch._inductor.config as inductor

    inductor.fallback_random = True
    inductor.force_disable_caches = True


def options(name):
    """Options for ``torch.compile`` under which a backend compiles afresh."""
    return {"disk_cache": False} if name == "kiln" else None


def compile(function, name, **keywords):
    """``torch.compile`` with the backend, compiling afresh."""
    import torch

    chosen = {**(options(name) or {}), **keywords.pop("options", {})}
    if chosen:
        keywords["options"] = chosen
    return torch.compile(function, backend=name, **keywords)


def forget(name):
    """Clears the backend's events."""
    module = sys.modules.get("kiln") if name == "kiln" else None
    if module is not None and hasattr(module, "clear_events"):
        module.clear_events()


def fallbacks(name):
    """How many nodes ran in PyTorch since `forget`, and why: ``(count, reasons)``; ``(None, {})`` where the backend does not say.
    Nodes that draw random numbers there because eager's are asked for do not count."""
    module = sys.modules.get("kiln") if name == "kiln" else None
    if module is None or not hasattr(module, "report"):
        return None, {}
    report = module.report()
    reasons = {reason: count for reason, count in report.fallbacks.items() if "fallback_random" not in reason}
    if report.refused:
        reasons["whole graph"] = report.refused
    return sum(reasons.values()), reasons
