"""Options of ``torch.compile(model, backend="kiln", options={…})``."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """What may be chosen.

    ``fullgraph_native``: an op that Kiln lacks is an error instead of a call of PyTorch's own kernel.
    ``numerics``: ``"fast"`` keeps short floats in float32 inside a kernel, ``"eager"`` rounds as PyTorch does after every op.
    ``disk_cache``: whether programs are looked for in the disk cache and kept there.
    ``torch_kernels``: whether convolutions run in PyTorch where its kernel is measured to be faster for their sizes.
    """

    fullgraph_native: bool = False
    numerics: str = "fast"
    disk_cache: bool = True
    torch_kernels: bool = True
    recorded: bool = False

    @classmethod
    def parse(cls, options):
        """Of the dictionary that a user gives."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(options or {}) - known)
        if unknown:
            raise ValueError(f"backend 'kiln' has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return cls(**(options or {}))
