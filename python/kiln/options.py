"""Options of ``torch.compile(model, backend="kiln", mode=…)`` and ``options={…}``."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": MODES,
    "numerics": ("fast", "eager"),
    "precision": (None, "highest", "high", "medium"),
    "freeze": (False, True, "no_copy", "pack"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What may be chosen.

    ``mode``: one of ``MODES``, for those who give other options too (``torch.compile`` takes either ``mode=`` or ``options=``).
    ``numerics``: ``"fast"`` keeps short floats in float32 inside a kernel, ``"eager"`` rounds as PyTorch does after every op.
    ``precision``: of float32 products, ``"highest"``, ``"high"`` or ``"medium"``; none for what
    ``torch.get_float32_matmul_precision()`` says when the graph is compiled.
    ``verify``: at the first call, compares every kernel with the reference interpreter; a difference is ``kiln.WrongResult``.
    ``freeze``: in graphs without gradients, computes once what depends on parameters alone, and packs the weights of products where
    that pays (``True``), never (``"no_copy"``) or wherever there is a layout for it (``"pack"``).
    ``background``: compiles on another thread, while calls run in PyTorch.
    ``never_slower``: at the first call, measures PyTorch and Kiln, and keeps the faster.
    ``disk_cache``: whether programs are looked for in the disk cache and kept there.
    ``cache_dir``: the folder of the disk cache, for the whole process from now on.
    ``fullgraph_native``: an op that Kiln lacks is an error instead of a call of PyTorch's own kernel.
    ``torch_kernels``: whether convolutions, products and attentions run in PyTorch where its kernel is measured to be faster for their
    sizes.
    ``fallback_random``: whether ops that draw random numbers run in PyTorch, so that the numbers are those of eager; none for what
    ``torch._inductor.config.fallback_random`` says.
    ``tuning_seconds``: how long ``max-autotune`` may measure for one program.
    """

    mode: str = "default"
    numerics: str = "fast"
    precision: str | None = None
    verify: bool = False
    freeze: bool | str = False
    background: bool = False
    never_slower: bool = False
    disk_cache: bool = True
    cache_dir: str | os.PathLike[str] | None = None
    fullgraph_native: bool = False
    torch_kernels: bool = True
    fallback_random: bool | None = None
    tuning_seconds: float = 2.0

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
        """Of what a user gives. An unknown name is a ``ValueError`` with those that are known, a bad value one with what is taken."""
        given = dict(options or {})
        if mode is not None:
            given.setdefault("mode", mode)
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(f"backend 'kiln' has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        for name, value in given.items():
            _check(name, value)
        return cls(**given)

    @property
    def tunes(self) -> bool:
        """Whether kernels are measured."""
        return self.mode.startswith("max-autotune")

    @property
    def records(self) -> bool:
        """Whether launches are recorded."""
        return self.mode in ("reduce-overhead", "max-autotune")

    def for_rust(self) -> dict[str, Any]:
        """The arguments of ``Graph.compile``."""
        return {
            "numerics": self.numerics,
            "precision": self.precision or torch.get_float32_matmul_precision(),
            "disk_cache": self.disk_cache,
            "recorded": self.records,
            "verify": self.verify,
            "tuning_seconds": float(self.tuning_seconds) if self.tunes else None,
        }

    @property
    def pack(self) -> str:
        """Which frozen weights are copied to a layout of the backend's own."""
        return {"no_copy": "never", "pack": "always"}.get(str(self.freeze), "where it pays")


DEFAULT = Options()


def _check(name: str, value: Any) -> None:
    """Refuses a value that an option does not take."""
    if name in _CHOICES:
        choices = _CHOICES[name]
        # 1 is no True.
        if not any(value is choice or isinstance(choice, str) and value == choice for choice in choices):
            raise ValueError(f"option {name}={value!r} of backend 'kiln' is not one of {', '.join(map(repr, choices))}")
    elif name == "cache_dir":
        if value is not None and not isinstance(value, (str, pathlib.PurePath)):
            raise ValueError(f"option cache_dir={value!r} of backend 'kiln' is not a path")
    elif name == "tuning_seconds":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
            raise ValueError(f"option tuning_seconds={value!r} of backend 'kiln' is not a positive number of seconds")
    elif not (isinstance(value, bool) or name == "fallback_random" and value is None):
        raise ValueError(f"option {name}={value!r} of backend 'kiln' is neither True nor False")
