"""Put a mutant into a process that has everything loaded: functions get their changed code, names of a module their new values."""

import ast
import gc
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def index_functions(folder: Path) -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """Find all functions that exist by file, name and first line, whoever holds them and whatever wraps them."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and one.__code__.co_filename.startswith(str(folder)):
            code = one.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(one)
    return found


def put_in(
    functions: dict[tuple[str, str, int], list[types.FunctionType]], path: Path, name: str, changed: str, line: int
) -> None:
    """Change a module as its changed text says; `line` is where the change begins: in a function, or in a value of the module."""
    code = compile(changed, str(path), "exec", dont_inherit=True)
    statement = next(one for one in ast.parse(changed).body if line <= (one.end_lineno or 0))
    within = _find_function(statement, line)
    if within is not None:
        first = min([within.lineno, *(decorator.lineno for decorator in within.decorator_list)])
        (new,) = [one for one in _list_codes(code) if one.co_firstlineno == first and one.co_name == within.name]
        for one in functions[str(path), new.co_qualname, first]:
            one.__code__ = new
    else:
        _give_new_values(sys.modules[name], code)


def find_names(source: str, line: int) -> list[str]:
    """Give the names of a module that get their value in a line; none in the line of a function."""
    statement = next((one for one in ast.parse(source).body if one.lineno <= line <= (one.end_lineno or 0)), None)
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _find_function(statement: ast.stmt, line: int) -> ast.FunctionDef | None:
    """Find the outermost function in whose body a line is."""
    if isinstance(statement, ast.FunctionDef):
        return statement if statement.body[0].lineno <= line <= (statement.end_lineno or 0) else None
    if isinstance(statement, ast.ClassDef):
        inside = (_find_function(one, line) for one in statement.body if one.lineno <= line <= (one.end_lineno or 0))
        return next((one for one in inside if one is not None), None)
    return None


def _list_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """List the code of all functions in a module."""
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _list_codes(one)


def _give_new_values(module: types.ModuleType, code: types.CodeType) -> None:
    """Run the module's changed text apart, and give every module that has one of its names the value that changed."""
    apart = types.ModuleType(module.__name__)
    apart.__file__ = module.__file__
    exec(code, apart.__dict__)
    for name, new in vars(apart).items():
        old = vars(module).get(name)
        if name.startswith("__") or callable(new) or not _differ(old, new):
            continue
        for other in list(sys.modules.values()):
            known = getattr(other, "__dict__", {})
            if known.get(name) is old:
                known[name] = new


def _differ(old: Any, new: Any) -> bool:
    """Say whether two values differ; what cannot be compared does not."""
    try:
        return type(old) is type(new) and bool(old != new)
    except (TypeError, ValueError):
        return False
