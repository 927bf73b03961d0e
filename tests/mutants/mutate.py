"""Make mutants of a module: its source with one small change each, as a careless edit would make it."""

import ast
import copy
import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {"min": "max", "any": "all", "minimum": "maximum", "fmin": "fmax", "floor": "ceil", "isfinite": "isnan"}
_CALLS |= {after: before for before, after in _CALLS.items()}
#: Arguments that say how a call checks itself, not what it gives.
_MUTE = {"strict"}


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file; `nth` counts equal changes of equal lines, so that a mutant keeps its name when lines move."""

    file: str
    line: int
    text: str
    before: str
    after: str
    start: int
    end: int
    nth: int = 0

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Give what names the mutant whatever stands above it."""
        return self.file, self.text, self.before, self.after, self.nth

    def apply(self, source: bytes) -> bytes:
        """Give the source with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def list_mutants(file: str, source: bytes) -> list[Mutant]:
    """List all mutants of a module in the order of its text."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    found, seen = [], {}
    for node, after in _walk(tree):
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        if " ".join(before.split()) == after:
            continue
        text = lines[node.lineno - 1].decode().strip()
        nth = seen[text, before, after] = seen.get((text, before, after), -1) + 1
        found.append(Mutant(file, node.lineno, text, before, after, start, end, nth))
    return sorted(found, key=lambda m: (m.start, m.end, m.after))


def choose(root: Path, files: Sequence[str], n: int, seed: int) -> list[Mutant]:
    """Draw mutants, of each file the more the more it has; a file's draw does not depend on the others' text."""
    every = {file: list_mutants(file, (root / file).read_bytes()) for file in files}
    every = {file: mutants for file, mutants in every.items() if mutants}
    # Square roots: the largest files shall not have it all.
    weight = {file: len(mutants) ** 0.5 for file, mutants in every.items()}
    wanted = {file: n * weight[file] / sum(weight.values()) for file in every}
    share = {file: int(wanted[file]) for file in every}
    for file in sorted(every, key=lambda f: share[f] - wanted[f])[: n - sum(share.values())]:
        share[file] += 1
    chosen: list[Mutant] = []
    for file, mutants in every.items():
        drawn = random.Random(f"{seed}:{file}").sample(mutants, min(share[file], len(mutants)))
        chosen += sorted(drawn, key=lambda m: (m.start, m.end, m.after))
    return chosen


def _walk(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Give nodes, and what may stand in their place."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return  # in 3.11 parts of f-strings do not know where they stand
        case ast.FunctionDef(body=body):
            below: list[ast.AST] = [*body]  # default values are made when a module is loaded: see `live`
        case ast.ClassDef(body=body):
            below = [one for one in body if isinstance(one, ast.FunctionDef)]
        case ast.Call(func=ast.Name(id="round"), args=[value, *_]):
            below = [value]  # how many digits are written is no judgement
        case ast.AnnAssign(value=value):
            below = [value] if value is not None else []
        case ast.keyword(arg=arg, value=value):
            below = [] if arg in _MUTE else [value]
        case _:
            below = list(ast.iter_child_nodes(node))
    yield from _change(node)
    for child in below:
        yield from _walk(child)


def _change(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:  # noqa: C901 - a table
    """Give what may stand in the place of one node."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                changed = copy.deepcopy(node)
                changed.ops[i] = _COMPARISONS[type(op)]()
                yield node, f"({ast.unparse(changed)})"
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _is_type(node):
            yield node, f"({ast.unparse(ast.BinOp(node.left, _ARITHMETIC[type(op)](), node.right))})"
        case ast.AugAssign(op=op):
            if type(op) in _ARITHMETIC:
                yield node, ast.unparse(ast.AugAssign(node.target, _ARITHMETIC[type(op)](), node.value))
            yield node, "pass"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, str(value + 1 if isinstance(value, int) else value * 2 or 1.0)
        case ast.Call(func=ast.Name(id=name) as func) if name in _CALLS:
            yield func, _CALLS[name]
        case ast.Call(func=ast.Attribute(value=value, attr=name) as func) if name in _CALLS:
            yield func, f"({ast.unparse(value)}).{_CALLS[name]}"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Continue():
            yield node, "break"
        case ast.Break():
            yield node, "continue"


def _is_type(node: ast.BinOp) -> bool:
    """Say whether `a | b` is a type: both sides are names, and one is `None` or begins with a capital letter."""
    names = [ast.unparse(side) for side in (node.left, node.right)]
    return isinstance(node.op, ast.BitOr) and any(name == "None" or name[:1].isupper() for name in names)
