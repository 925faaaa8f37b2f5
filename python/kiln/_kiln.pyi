from collections.abc import Callable, Sequence
from typing import Any

__version__: str

class Unsupported(RuntimeError):
    """A graph that Kiln cannot compile."""

def ops() -> list[str]:
    """The ops that have a Kiln expression."""

def set_threads(threads: int) -> None:
    """Sets the number of threads that kernels run on."""

def threads() -> int:
    """The number of threads that kernels run on."""

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
        tensor_type: type,
        allocate: Callable[..., Any],
        dtypes: Sequence[Any],
        name: str = "graph",
        numerics: str = "fast",
        disk_cache: bool = True,
    ) -> Program: ...

class Program:
    """A compiled graph. A call takes the list of its parameters and returns the list of its outputs."""

    def __call__(self, arguments: list[Any], seed: int = 0) -> list[Any]: ...
    @property
    def draws(self) -> bool: ...
    @property
    def launches(self) -> int: ...
    def describe(self) -> str: ...
