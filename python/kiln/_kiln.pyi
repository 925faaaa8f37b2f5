import os
from collections.abc import Callable, Sequence
from typing import Any

__version__: str

class Unsupported(RuntimeError):
    """A graph that Kiln cannot compile."""

class WrongResult(RuntimeError):
    """A kernel whose result differs from the reference interpreter's: a bug of Kiln's, with a report."""

def ops() -> list[str]:
    """The ops that have a Kiln expression."""

def set_threads(threads: int | None = None) -> None:
    """Sets the number of threads that kernels run on; without one, they are PyTorch's (``torch.set_num_threads``)."""

def threads() -> int:
    """The number of threads that kernels run on."""

def forget() -> None:
    """Gives memory back as `release_memory` does, and drops the kernels that no program holds."""

def release_memory() -> None:
    """Gives the memory that programs keep for their next runs back to the system."""

def connect(
    tensor_type: type,
    threads: Callable[[], int],
    emit: Callable[[str, str, str], None],
    functions: dict[str, int],
    probes: Sequence[Any],
) -> None: ...
def live_programs() -> int: ...
def cache_folder() -> str | None: ...
def set_cache_folder(folder: str | os.PathLike[str] | None = None) -> None: ...
def cache_entries() -> dict[str, tuple[int, int]]: ...
def clear_cache() -> tuple[int, int]: ...
def cache_stats() -> dict[str, int]: ...
def listen(on: bool) -> None: ...
def heard() -> list[tuple[str, str]]: ...
def page(
    name: str,
    parts: Sequence[Explained],
    breaks: Sequence[tuple[str, str, str, int]],
    recompiles: Sequence[str],
    remarks: Sequence[str],
    first_call: Sequence[tuple[str, float]],
) -> tuple[str, str]: ...

class Graph:
    """A graph of ATen ops under construction. Tensors are numbers; sizes are numbers or texts of expressions."""

    def __init__(self) -> None: ...
    def value(self, dtype: str, shape: Sequence[int | str], strides: Sequence[int | str]) -> int: ...
    def parameter(self, value: int) -> None: ...
    def size_parameter(self, size: int | str) -> None: ...
    def hint(self, symbol: str, size: int) -> None: ...
    def call(
        self, op: str, arguments: Sequence[tuple[str, Any]], results: Sequence[int | None], file: str, line: int
    ) -> None: ...
    def output(self, value: int) -> None: ...
    def unsupported(self) -> list[tuple[int, str]]: ...
    def text(self) -> str: ...
    def compile(
        self,
        allocate: Callable[..., Any],
        dtypes: Sequence[Any],
        name: str = "graph",
        device: str = "cpu",
        numerics: str = "fast",
        precision: str = "highest",
        frozen: Sequence[int] | None = None,
        pack: str = "where it pays",
        disk_cache: bool = True,
        recorded: bool = False,
        verify: bool = False,
        tuning_seconds: float | None = None,
    ) -> Program: ...

class Program:
    """A compiled graph. A call takes the list of its parameters and returns the list of its outputs."""

    def __call__(self, arguments: list[Any], seed: Any = None) -> list[Any]: ...
    def explain(self, arguments: list[Any], seed: Any = None) -> Explained: ...
    @property
    def draws(self) -> bool: ...
    @property
    def launches(self) -> int: ...
    @property
    def made(self) -> tuple[int, float, bool]:
        """Kernels that were compiled for it, seconds that making it took, and whether it was read from the disk cache."""
    @property
    def frozen(self) -> tuple[int, int, int]:
        """Bytes of packed and of prepared weights, and how often they were made."""
    @property
    def holds_weights(self) -> bool: ...
    def describe(self) -> str: ...

class Explained:
    """A program explained: its graph, kernels and times."""

    def kernels(self) -> list[tuple[str, str, float, int, int, int, list[str]]]: ...
    def seconds(self) -> float: ...
