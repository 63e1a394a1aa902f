"""The rules of the house: who may import whom, how long a file may be, and what the README promises."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("pages", "accum_ui", "experiments", "accum_core")
MAY_IMPORT_STREAMLIT = ("app.py", "pages/", "accum_ui/")
NOT_OURS = {"__pycache__", "static"}
BINARY = {".npz", ".png", ".gz"}

Import = tuple[str, bool]
"""A dotted name, and whether it is imported when the file is (not only when a function in it runs)."""


def files() -> Iterator[Path]:
    """Every file of the project, relative to its root; neither environments, caches nor the store of runs."""
    shown = {".ci", ".streamlit", ".gitignore"}
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") and top.name not in shown:
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and not NOT_OURS & set(path.parts):
                yield path.relative_to(ROOT)


def python_files(*under: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.as_posix().startswith(under or "")]


def imports(path: Path) -> set[Import]:
    """What a file imports, at any depth; ``from a import b`` counts as ``a`` and as ``a.b``."""
    found: set[Import] = set()

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.update((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.update((f"{node.module}.{alias.name}", at_import) for alias in node.names)
            found.add((str(node.module), at_import))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            at_import = False
        inside = at_import and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8")), True)
    return found


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name, _ in imports(path)}


def test_arrows_point_one_way() -> None:
    wrong = [
        f"{path} imports {name}"
        for depth, layer in enumerate(LAYERS)
        for path in python_files(f"{layer}/")
        for name in packages(path) & {*LAYERS[:depth], "app", "benchmarks", "tests"}
    ]
    assert wrong == []


def test_papers_do_not_import_one_another() -> None:
    papers = {path.stem for path in python_files("experiments/") if defines(path, "EXPERIMENT")}
    assert papers, "no paper was found"
    wrong = [
        f"{paper} imports {name}"
        for paper in papers
        for name, _ in imports(Path(f"experiments/{paper}.py"))
        if name in {f"experiments.{other}" for other in papers}
    ]
    assert wrong == []


def defines(path: Path, name: str) -> bool:
    """Whether a file assigns to this name at its top level."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True
    return False


def test_streamlit_stays_in_the_app() -> None:
    project = [path for path in python_files() if not path.as_posix().startswith(("tests/", "benchmarks/"))]
    outside = [path for path in project if not path.as_posix().startswith(MAY_IMPORT_STREAMLIT)]
    assert [str(path) for path in outside if "streamlit" in packages(path)] == []
    assert [str(path) for path in project if path.name == "figures.py" and "streamlit" in packages(path)] == []


def test_torch_stays_in_the_engine() -> None:
    may_import_it = ("accum_core/engine/", "accum_core/frameworks/", "tests/", "benchmarks/")
    outside = [path for path in python_files() if not path.as_posix().startswith(may_import_it)]
    may_import_it_too = ("accum_core.engine", "accum_core.frameworks.")
    wrong = [
        f"{path} imports {name}"
        for path in outside
        for name, at_import in imports(path)
        if at_import and (name.split(".")[0] in ("torch", "torchvision") or name.startswith(may_import_it_too))
    ]
    assert wrong == []


FRAME = """
import streamlit as st
from accum_ui.navigation import page_files
pages = [st.Page(page.path, url_path=page.address, default=page.path.name == {page!r}) for page in page_files()]
st.navigation(pages).run()
"""
RUN_FRAME = """
import sys
from streamlit.testing.v1 import AppTest
page = AppTest.from_string(sys.argv[1], default_timeout=120).run()
assert not page.exception, page.exception
assert page.title, "the page shows no title"
loaded = {"torch", "torchvision"} & set(sys.modules)
assert not loaded, f"the page loads {loaded}"
"""


@pytest.mark.parametrize("page", [path.name for path in python_files("pages/")])
def test_page_opens_without_torch(page: str, tmp_path: Path) -> None:
    settings = {"ACCUMULATION_LAB_STORE": str(tmp_path / "runs.sqlite"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN_FRAME, FRAME.format(page=page)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_server_starts_without_torch() -> None:
    code = "import sys, app; assert not {'torch', 'torchvision'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_files_are_short() -> None:
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {str(path): length for path, length in lengths.items() if length > 300} == {}
    assert {str(path): n for path, n in lengths.items() if path.parts[0] == "pages" and n >= 120} == {}


def test_file_names_say_something() -> None:
    assert [str(path) for path in python_files() if re.search(r"util|helper|misc|common", path.stem)] == []


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def test_library_is_documented() -> None:
    bare = []
    for path in python_files("accum_core/"):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        if tree.body and ast.get_docstring(tree) is None:
            bare.append(str(path))
        for node in public_definitions(tree.body):
            overrides = any(ast.unparse(mark).endswith("override") for mark in node.decorator_list)
            if ast.get_docstring(node) is None and not overrides and node.name not in ("forward", "backward"):
                bare.append(f"{path}:{node.lineno} {node.name}")
    assert bare == []


def test_no_file_names_a_machine() -> None:
    # In pieces, so that this file does not name one.
    places = [f"/{folder}/".encode() for folder in ("work", "root", "home")]
    readable = [path for path in files() if path.suffix not in BINARY]
    wrong = [str(path) for path in readable if any(place in (ROOT / path).read_bytes() for place in places)]
    assert wrong == []


REQUIREMENTS = ("requirements.txt", "requirements-frameworks.txt", "requirements-dev.txt")


def pins(name: str) -> dict[str, str]:
    """The requirements of a file: name -> exact version. Anything but ``name==version`` is an error."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if line and not line.startswith(("#", "-r ")):
            match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.]+)", line)
            assert match, f"{name}: {line!r} does not pin a version"
            found[normal(match[1])] = match[2]
    return found


def normal(distribution: str) -> str:
    """A distribution's name as the packaging standards compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def third_party(paths: list[Path]) -> set[str]:
    """Distributions that these files import."""
    ours = {path.stem for path in python_files()} | {path.parts[0] for path in python_files()}
    names = {name for path in paths for name in packages(path)} - set(sys.stdlib_module_names) - ours
    owners = importlib.metadata.packages_distributions()
    return {normal(owners[name][0]) for name in names}


def test_requirements_are_what_is_imported() -> None:
    product = [path for path in python_files() if not path.as_posix().startswith(("tests/", "benchmarks/"))]
    app, frameworks, dev = map(pins, REQUIREMENTS)
    everything = third_party(python_files())
    # A notebook that a test runs needs a kernel, which no file imports.
    tools = {"ipykernel", "mypy", "pytest-timeout", "pytest-xdist", "ruff"}
    assert set(dev) == everything - set(app) - set(frameworks) | tools
    # The engine imports these by their names, where a run asks for them.
    assert set(app) | set(frameworks) == third_party(product) | {"datasets", "peft"}
    assert not set(app) & set(dev) and not set(app) & set(frameworks) and not set(frameworks) & set(dev)


def test_installed_versions_are_the_pinned_ones() -> None:
    pinned = {name: version for file in REQUIREMENTS for name, version in pins(file).items()}
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in pinned}
    assert installed == pinned


def commands(document: str) -> list[str]:
    """The shell lines of a document's bash blocks, continuation lines joined."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_make_targets_exist(document: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = [line.split()[1] for line in commands(document) if line.startswith("make ")]
    assert asked, f"{document} names no make target"
    assert set(asked) <= set(targets)


def test_documented_command_lines_parse() -> None:
    from experiments.cli import group

    lines = [
        line.partition(" -m experiments ")[2].split() for line in commands("README.md") if " -m experiments " in line
    ]
    assert len(lines) >= 3
    for name, *arguments in lines:
        with click.Context(group) as context:
            command = group.get_command(context, name)
            assert command, f"python -m experiments has no command {name}"
            command.make_context(name, arguments, parent=context)


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in [path for path in files() if path.suffix == ".md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text(encoding="utf-8")):
            if not (ROOT / document.parent / link).exists():
                wrong.append(f"{document}: {link}")
    assert wrong == []


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
