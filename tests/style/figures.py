"""Reads every Python file below a folder and counts."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.style.words import is_participle

RIDDLES = frozenset({"whoever", "whatever", "whose"})
LAYOUT = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
DELAY = re.compile("delay|backoff|back_off|not_before")
WORD = re.compile(r"[A-Za-z']+")
Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Counts:
    """What was counted in all files of a folder."""

    classes: dict[str, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # name: modules that define it
    functions: list[str] = field(
        default_factory=list
    )  # without dunders and tests, leading underscores removed
    code_lines: int = 0
    tokens: int = 0
    conditional_expressions: int = 0
    local_imports: int = 0
    comment_words: int = 0
    riddle_words: int = 0
    cache_modules: set[str] = field(default_factory=set)  # those that drop the oldest entry
    backoff_modules: set[str] = field(default_factory=set)  # those that let a delay grow


@dataclass(frozen=True)
class Figures:
    """The table that `make style` prints, one row per field."""

    ambiguous_classes: int
    participle_functions: float  # percent
    one_word_functions: float  # percent
    tokens_per_line: float
    conditionals_per_1000_lines: float
    riddles_per_1000_words: float
    local_imports: int
    lru_caches: int  # modules
    backoffs: int  # modules


AIMS = Figures(
    ambiguous_classes=0,
    participle_functions=2.0,
    one_word_functions=50.0,
    tokens_per_line=8.0,
    conditionals_per_1000_lines=16.0,
    riddles_per_1000_words=1.0,
    local_imports=60,
    lru_caches=1,
    backoffs=1,
)


def measure(folder: Path) -> Figures:
    counts = count(folder)
    functions = len(counts.functions)
    one_word = [name for name in counts.functions if "_" not in name]
    participles = [name for name in one_word if is_participle(name)]
    return Figures(
        ambiguous_classes=len(ambiguous_classes(counts)),
        participle_functions=100 * len(participles) / functions,
        one_word_functions=100 * len(one_word) / functions,
        tokens_per_line=counts.tokens / counts.code_lines,
        conditionals_per_1000_lines=1_000 * counts.conditional_expressions / counts.code_lines,
        riddles_per_1000_words=1_000 * counts.riddle_words / counts.comment_words,
        local_imports=counts.local_imports,
        lru_caches=len(counts.cache_modules),
        backoffs=len(counts.backoff_modules),
    )


def ambiguous_classes(counts: Counts) -> dict[str, set[str]]:
    return {name: modules for name, modules in counts.classes.items() if len(modules) > 1}


def count(folder: Path) -> Counts:
    counts = Counts()
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text()
        nodes = list(ast.walk(ast.parse(source)))
        module = str(file.relative_to(folder))
        _count_names(nodes, module, counts)
        _count_mechanisms(nodes, module, counts)
        _count_text(source, nodes, counts)
    return counts


def _count_names(nodes: list[ast.AST], module: str, counts: Counts) -> None:
    imports = [node.lineno for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            counts.classes[node.name].add(module)
        elif isinstance(node, ast.IfExp):
            counts.conditional_expressions += 1
        elif isinstance(node, Definition):
            last = node.end_lineno or node.lineno
            counts.local_imports += sum(node.lineno <= line <= last for line in imports)
            if not node.name.startswith(("__", "test_")):
                counts.functions.append(node.name.strip("_"))


def _count_mechanisms(nodes: list[ast.AST], module: str, counts: Counts) -> None:
    """Find hand-written caches (`popitem`) and backoffs (a product with a bound, named a delay)."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "popitem":
            counts.cache_modules.add(module)
        if _names_delay(node) and any(map(_is_bounded_product, ast.walk(node))):
            counts.backoff_modules.add(module)


def _names_delay(node: ast.AST) -> bool:
    """Whether the node assigns a delay, or is a function with a delay in its name."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return DELAY.search(name) is not None
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return DELAY.search(name) is not None
    return False


def _is_bounded_product(node: ast.AST) -> bool:
    """Whether the node is like `min(2 * delay, longest)`."""
    match node:
        case ast.Call(func=ast.Name(id="min"), args=arguments):
            return any(map(_is_product, arguments))
    return False


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow)


def _count_text(source: str, nodes: list[ast.AST], counts: Counts) -> None:
    docstring_lines = set[int]()
    for docstring in _docstrings(nodes):
        docstring_lines.update(
            range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
        )
        _count_words(str(docstring.value), counts)
    code_lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            _count_words(token.string, counts)
        elif token.type not in LAYOUT and token.start[0] not in docstring_lines:
            counts.tokens += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    counts.code_lines += len(code_lines)


def _docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | Definition) or not node.body:
            continue
        first = node.body[0]
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            yield first.value


def _count_words(text: str, counts: Counts) -> None:
    words = WORD.findall(text)
    counts.comment_words += len(words)
    counts.riddle_words += sum(word.lower() in RIDDLES for word in words)
