"""Sites: places in a function where the program can be made a little wrong, as mutation testing does."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
Apply = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Site:
    """A place where something can be changed.

    Attributes:
        path: of the source.
        index: of the site in it, in order.
        lines: the first and the last one of what is changed.
        what: is done.
        function: the outermost function around it: its qualified name and its first line, decorators included.
    """

    path: Path
    index: int
    lines: tuple[int, int]
    what: str
    function: tuple[str, int]

    @property
    def text(self) -> str:
        """Returns the site's first line."""
        return self.path.read_text().splitlines()[self.lines[0] - 1].strip()


def sites_of(path: Path) -> list[Site]:
    """Returns all sites of a source, in order."""
    return [
        Site(path, index, (node.lineno, node.end_lineno or node.lineno), what, function)
        for index, (node, what, function, _) in enumerate(_changes(_parsed(path)))
    ]


def mutated(site: Site) -> CodeType:
    """Returns the code of the site's outermost function, with the site changed."""
    tree = _parsed(site.path)
    for index, (_, _, _, apply) in enumerate(_changes(tree)):
        if index == site.index:
            apply()
            break
    module = compile(ast.fix_missing_locations(tree), str(site.path), "exec", dont_inherit=True)
    return next(code for code in _codes(module) if (code.co_qualname, code.co_firstlineno) == site.function)


def install(site: Site) -> bool:
    """Puts the changed function in the place of the one that is loaded; returns whether that can be done.

    Whoever has the function by another name has the changed one too.
    """
    code, is_done = mutated(site), False
    for function in _loaded(str(site.path)):
        own = function.__code__
        if (own.co_qualname, own.co_firstlineno) == site.function and own.co_freevars == code.co_freevars:
            function.__code__, is_done = code, True
    return is_done


def _loaded(path: str) -> list[FunctionType]:
    return [one for one in gc.get_objects() if type(one) is FunctionType and one.__code__.co_filename == path]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(_source(path))


@cache
def _source(path: Path) -> str:
    return path.read_text()


Node = ast.expr | ast.stmt
Change = tuple[Node, str, tuple[str, int], Apply]
Put = Callable[[ast.AST], None]


def _changes(module: ast.Module) -> Iterator[Change]:
    """Yields what can be changed: where, what is done, in which function, and what does it to the tree."""
    for function, name in _functions(module.body, ""):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        has_docstring = ast.get_docstring(function, clean=False) is not None
        for at, statement in enumerate(function.body):
            if at or not has_docstring:
                put = partial(function.body.__setitem__, at)
                for node, put_there in _walk(statement, put):
                    if not isinstance(node, Node):
                        continue
                    for what, new in _variants(node):
                        yield node, what, (name, first), partial(put_there, ast.copy_location(new, node))


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef):
            yield statement, prefix + statement.name


def _walk(node: ast.AST, put: Put) -> Iterator[tuple[ast.AST, Put]]:
    """Yields a node and all below it, but for assertions and annotations, each with what puts another in its place."""
    if isinstance(node, ast.Assert):
        return
    yield node, put
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        if isinstance(value, list):
            for at, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _walk(child, partial(value.__setitem__, at))
        elif isinstance(value, ast.AST):
            yield from _walk(value, partial(setattr, node, field))


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields what may stand in the place of a node, and what that is called."""
    match node:
        case ast.Compare(left, [op], right) if other := COMPARISONS.get(type(op)):
            yield f"{type(op).__name__} becomes {other.__name__}", ast.Compare(left, [other()], right)
        case ast.BoolOp(ast.And(), values):
            yield "and becomes or", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield "or becomes and", ast.BoolOp(ast.And(), values)
        case ast.BinOp(left, op, right) if operator := ARITHMETIC.get(type(op)):
            yield f"{type(op).__name__} becomes {operator.__name__}", ast.BinOp(left, operator(), right)
        case ast.Constant(bool() as value):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(int() as value):
            yield f"{value} becomes {value + 1}", ast.Constant(value + 1)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not left out", operand
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            yield "condition turned round", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            yield "condition turned round", ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.List(elements, ast.Load()) | ast.Tuple(elements, ast.Load()):
            for at, element in enumerate(elements):
                if isinstance(element, ast.Starred | ast.Call):
                    rest = elements[:at] + elements[at + 1 :]
                    yield f"{ast.unparse(element)} left out", type(node)(rest, ast.Load())
        case ast.Expr(ast.Call()) | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield "left out", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "left out", ast.Pass()
        case _:
            pass
