"""Small changes to the package's source, one at a time, of the kinds that programmers make by mistake.

Left alone is what no test should pin: docstrings, annotations, texts of errors and descriptions, assertions (also
`strict=True` of `zip`), imports.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BOUNDARIES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
SWAPPED = {"any": "all", "all": "any", "min": "max", "max": "min"}
TEXTS = re.compile(r"^(describe|explain|__str__|__repr__|_?\w*text|why_\w+)$")
"""Functions whose results are read by people."""
SAYS = re.compile(r"(refuse|warn|Error|print)$")
"""Calls whose arguments are."""
LOCK = re.compile(r"lock|merging|counting|dealing|changed|guard", re.IGNORECASE)

TYPES = "const|int|real|double|float|bool|uint"
CUDA: tuple[tuple[str, str, str], ...] = (
    ("boundary", r"(?<=\s)<(?=\s)", "<="),
    ("boundary", r"(?<=\s)<=(?=\s)", "<"),
    ("boundary", r"(?<=\s)>(?=\s)", ">="),
    ("boundary", r"(?<=\s)>=(?=\s)", ">"),
    ("swapped", r"\bfmax(?=\w?\()", "fmin"),
    ("swapped", r"\bfmin(?=\w?\()", "fmax"),
    ("swapped", r"&&", "||"),
    ("operand", r"!(?=[\w(])", ""),
    ("number", r"(?<=[\s(\[])1(?=[\s)\];,])", "2"),
    ("number", r"(?<=[\s(\[])0(?=[\s)\];,])", "1"),
    ("number", r"(?<== )0\.0f?", "1.0"),
    ("precision", r"\bdouble(?= \w+ =)", "float"),
    ("statement", rf"(?<=\n)[ ]+(?! |return|{TYPES})[\w\[\]. +*/-]+ [-+*/]?= [^;\n]+;", ""),
    ("statement", r"(?<=\n)[ ]+if \([^;{\n]*\) (?:return|continue|break);", ""),
)  # fmt: skip
"""Kind, pattern and replacement for kernels in CUDA C++."""


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes of a file from `start` to `end` become `new`."""

    path: str
    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.kind}: {old[:90]} → {new[:90] or 'nothing'}"


def mutants(root: Path, path: str) -> list[Mutant]:
    """All of a source file's."""
    source = (root / path).read_bytes()
    found = _of_cuda(path, source) if path.endswith(".cu") else _Python(path, source).found
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def sample(all_mutants: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """A random sample, in random order, in which no kind is more than a fifth of all."""
    generator = random.Random(seed)
    left = list(all_mutants)
    generator.shuffle(left)
    most, chosen, counts = max(1, size // 5), [], dict.fromkeys((mutant.kind for mutant in left), 0)
    for mutant in left:
        if len(chosen) < size and counts[mutant.kind] < most:
            counts[mutant.kind] += 1
            chosen.append(mutant)
    return chosen


def _of_cuda(path: str, source: bytes) -> Iterator[Mutant]:
    text = source.decode()
    code = re.sub(
        r"//[^\n]*|/\*.*?\*/|^#[^\n]*", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.S | re.M
    )
    for kind, pattern, new in CUDA:
        for match in re.finditer(pattern, code):
            start, end = (len(text[:place].encode()) for place in match.span())
            yield Mutant(path, kind, text.count("\n", 0, match.start()) + 1, start, end, match[0], new)


class _Python(ast.NodeVisitor):
    """Finds what can be changed in a module."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutant]()
        self._lines = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self.visit(ast.parse(source))

    # Where things are

    def _span(self, node: ast.AST) -> tuple[int, int]:
        lines = self._lines
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _add(self, kind: str, start: int, end: int, new: str) -> None:
        line = self.source.count(b"\n", 0, start) + 1
        self.found.append(Mutant(self.path, kind, line, start, end, self.source[start:end].decode(), new))

    def _replace(self, kind: str, node: ast.AST, new: str) -> None:
        self._add(kind, *self._span(node), new)

    # What is left alone

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if TEXTS.match(node.name):
            return
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._body(node.body)

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 - names that ast asks for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.body, statements=False)

    def visit_Module(self, node: ast.Module) -> None:
        thresholds = [each for each in node.body if isinstance(each, ast.Assign) and _is_threshold(each.value)]
        self._body([each for each in node.body if each not in thresholds], statements=False)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_Raise(self, node: ast.Raise) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if not re.match(
            r"(tuple|list|dict|set|Callable|Sequence|Mapping|type|Iterator|np\.ndarray)$", self._text(node.value)
        ):
            self.visit(node.slice)

    # What is changed

    def _body(self, body: list[ast.stmt], *, statements: bool = True) -> None:
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if statements and self._can_go(statement):
                self._replace("statement", statement, "pass")
            self.visit(statement)

    def _can_go(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Expr() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise() | ast.Delete():
                return True
            case ast.Return(value=None):
                return True
            case ast.Assign():
                return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
        return False

    def _blocks(self, node: ast.stmt) -> None:
        """A statement with statements inside."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._body(value)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.ExceptHandler | ast.match_case):
                        self._body(child.body)
                    elif isinstance(child, ast.AST):
                        self.visit(child)

    visit_For = visit_While = visit_Try = visit_Match = _blocks  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if self._text(node.test) != "TYPE_CHECKING":
            self._blocks(node)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if LOCK.search(self._text(item.context_expr)) and not isinstance(item.context_expr, ast.Call):
                self._replace("lock", item.context_expr, '__import__("contextlib").nullcontext()')
        self._blocks(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for before, operator, after in zip(operands, node.ops, operands[1:], strict=False):
            if type(operator) in BOUNDARIES:
                old, new = BOUNDARIES[type(operator)]
                start, end = self._span(before)[1], self._span(after)[0]
                at = start + self.source[start:end].index(old.encode())
                self._add("boundary", at, at + len(old), new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for number, operand in enumerate(node.values):
            start, end = self._span(operand)
            if number:
                start = self._span(node.values[number - 1])[1]
            else:
                end = self._span(node.values[1])[0]
            # Parentheses may lie between operands: only what is balanced goes.
            text = self.source[start:end].decode()
            if text.count("(") == text.count(")"):
                self._add("operand", start, end, "")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace("not", node, f"bool({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        for branch in (node.body, node.orelse):
            self._replace("conditional", node, f"({self._text(branch)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not any(_is_text(side) for side in (node.left, node.right)):
            text = self._text(node)
            if text.count("(") == text.count(")"):
                self._replace("term", node, f"({self._text(node.left)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._replace("number", node, f"{node.value + 1}")
            self._replace("number", node, f"({node.value - 1})")

    def visit_Call(self, node: ast.Call) -> None:
        name = self._text(node.func).rpartition(".")[2]
        if SAYS.search(name):
            return
        if name in SWAPPED and isinstance(node.func, ast.Name | ast.Attribute):
            end = self._span(node.func)[1]
            self._add("swapped", end - len(name), end, SWAPPED[name])
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        for keyword in node.keywords:
            if keyword.arg is None or (name, keyword.arg) == ("zip", "strict"):
                continue
            start, end = self._span(keyword)
            others = [self._span(other) for other in arguments if other is not keyword.value]
            before = [last for _, last in others if last <= start]
            start = max(before) if before else start
            if not before and (comma := re.match(rb"\s*,\s*", self.source[end:])):
                end += comma.end()
            text = self.source[start:end]
            if text.count(b"(") == text.count(b")") and b"#" not in text:
                self._add("keyword", start, end, "")
        self.generic_visit(node)


def _is_threshold(node: ast.AST) -> bool:
    """A large number: one more makes a difference of speed, if any."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 10


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
