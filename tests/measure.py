"""The size of the tree: what `scripts/measure` prints, and what tests/unit/test_tidy.py keeps from growing.

Product code is what the packages of pyproject.toml hold, without generated modules (`*_pb2.py`). Definitions:

largest class      distinct attributes: those assigned as `self.x` in the methods of the class, its slots, and its
                   annotated fields if it is a dataclass
largest folder     modules directly in it, `__init__.py` and `__main__.py` not counted
parameters         functions and methods with more than six, without `self` and `cls`; `*args` and `**kwargs` are none
long lines         lines of more than 100 characters in all .md files
statements         of product code and examples, as `ast` counts them: nested ones too, docstrings not
settings           fields of the dataclasses that a configuration file or the options of a client are made of: those in
                   modules named config, options or limits, and those that their fields refer to; only frozen ones
lines, modules     of product code
"""

from __future__ import annotations

import argparse
import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("_pb2.py", "_pb2_grpc.py")
PARAMETERS_MAX = 6
DOCUMENT_COLUMNS_MAX = 100
SETTINGS_MODULES = ("config", "options", "limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    largest_class_attributes: int
    largest_class: str
    largest_folder_modules: int
    largest_folder: str
    functions_with_many_parameters: int
    long_document_lines: int
    statements: int
    settings: int
    lines: int
    modules: int


class Module:
    """One Python file of the tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root)
        self.text = path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Name in this module -> (module, name there)."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


def package_folders(root: Path) -> dict[str, str]:
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    folders: dict[str, str] = pyproject["tool"]["setuptools"]["package-dir"]
    return folders


def product_modules(root: Path = ROOT) -> dict[str, Module]:
    """By name, as in `neve.rpc.config`."""
    return {
        ".".join([package, *([] if path.stem == "__init__" else [path.stem])]): Module(root, path)
        for package, folder in package_folders(root).items()
        for path in sorted((root / folder).glob("*.py"))
        if not path.name.endswith(GENERATED)
    }


def measure(root: Path = ROOT) -> Measures:
    product = product_modules(root)
    modules = list(product.values())
    examples = [Module(root, path) for path in sorted((root / "examples").rglob("*.py"))]
    attributes, largest_class = max(
        (len(attributes_of(node)), f"{module.path}: {node.name}")
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    )
    by_folder = Counter(
        str(module.path.parent) for module in modules if module.path.name not in ("__init__.py", "__main__.py")
    )
    folder, in_folder = by_folder.most_common(1)[0]
    return Measures(
        largest_class_attributes=attributes,
        largest_class=largest_class,
        largest_folder_modules=in_folder,
        largest_folder=folder,
        functions_with_many_parameters=sum(
            parameters_of(node) > PARAMETERS_MAX
            for module in modules
            for node in module.nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ),
        long_document_lines=sum(
            len(line) > DOCUMENT_COLUMNS_MAX
            for path in documents(root, set(package_folders(root).values()))
            for line in path.read_text().splitlines()
        ),
        statements=sum(statements_of(module) for module in [*modules, *examples]),
        settings=len(settings(product)),
        lines=sum(module.text.count("\n") for module in modules),
        modules=len(modules),
    )


def documents(root: Path, folders: set[str]) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    for folder in sorted({folder.split("/")[0] for folder in folders} | {"docs", "examples", "tests"}):
        yield from sorted((root / folder).rglob("*.md"))


def statements_of(module: Module) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(isinstance(node, documented) and ast.get_docstring(node) is not None for node in module.nodes)
    return sum(isinstance(node, ast.stmt) for node in module.nodes) - docstrings


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    positional = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    itself = positional[:1] in (["self"], ["cls"])
    return len(positional) - itself + len(function.args.kwonlyargs)


def attributes_of(node: ast.ClassDef) -> set[str]:
    found = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    for statement in node.body:
        if isinstance(statement, ast.Assign) and "__slots__" in map(ast.unparse, statement.targets):
            texts = [each.value for each in ast.walk(statement.value) if isinstance(each, ast.Constant)]
            found |= {text for text in texts if isinstance(text, str)}
    return found | {ast.unparse(field.target) for field in fields_of(node)}


def fields_of(node: ast.ClassDef, *, only_frozen: bool = False) -> list[ast.AnnAssign]:
    """The fields of a dataclass; none of any other class."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    dataclasses = [each for each in decorators if each.split("(")[0].rpartition(".")[2] == "dataclass"]
    if not dataclasses or (only_frozen and "frozen=True" not in dataclasses[0]):
        return []
    annotated = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return [each for each in annotated if "ClassVar" not in ast.unparse(each.annotation)]


def settings(product: dict[str, Module]) -> dict[tuple[str, str, str], None]:
    """(module, class, field) of each."""
    found: dict[tuple[str, str, str], None] = {}
    pending = [
        (name, class_name)
        for name, module in product.items()
        if name.rpartition(".")[2].rpartition("_")[2] in SETTINGS_MODULES
        for class_name in module.classes
    ]
    seen = set()
    while pending:
        name, class_name = place = pending.pop()
        if place in seen or name not in product:
            continue
        seen.add(place)
        module = product[name]
        if class_name not in module.classes:  # imported from elsewhere by that module
            if class_name in module.imported:
                pending.append(module.imported[class_name])
            continue
        for field in fields_of(module.classes[class_name], only_frozen=True):
            found[name, class_name, ast.unparse(field.target)] = None
            pending += [(name, each.id) for each in ast.walk(field.annotation) if isinstance(each, ast.Name)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the size of the tree; tests/measure.py defines each figure.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="another checkout")
    options = parser.parse_args()
    found = asdict(measure(options.root.resolve()))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):{width}}  {format(value, ',') if isinstance(value, int) else value}")


if __name__ == "__main__":
    main()
