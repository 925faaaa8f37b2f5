"""The type stubs say what the extension module has."""

import ast
import inspect
import pathlib

import kiln
from kiln import _kiln

STUBS = ast.parse(pathlib.Path(kiln.__file__).with_name("_kiln.pyi").read_text())
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def members(body):
    """The names that stubs declare, but those of Python's own protocols."""
    names = {part.name for part in body if isinstance(part, (*FUNCTIONS, ast.ClassDef))}
    names |= {part.target.id for part in body if isinstance(part, ast.AnnAssign)}
    return {name for name in names if not name.startswith("__")}


def public(value):
    return {name for name in vars(value) if not name.startswith("_")}


def test_every_name_has_a_stub():
    assert members(STUBS.body) == public(_kiln)
    for part in STUBS.body:
        if isinstance(part, ast.ClassDef):
            assert members(part.body) == public(getattr(_kiln, part.name)), part.name


def test_arguments_have_the_names_of_the_stubs():
    for part in STUBS.body:
        if isinstance(part, ast.FunctionDef):
            arguments = [argument.arg for argument in (*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs)]
            assert list(inspect.signature(getattr(_kiln, part.name)).parameters) == arguments, part.name


def test_the_package_is_typed_and_exports_what_it_says():
    assert pathlib.Path(kiln.__file__).with_name("py.typed").exists()
    assert all(hasattr(kiln, name) for name in kiln.__all__)
