"""The rooms and who may import whom, held against the code: one way, and only a few touch files or print."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nsysx"

#: The rooms in the order in which data flows; a room imports earlier lines and itself. Inside a room no two files import
#: each other in a circle, and neither do the rooms.
ORDER = (
    "errors",
    "option",
    "selection",
    "ids",
    "redaction",
    "units",
    "scope",
    "saving",
    "step_time",
    "pictures",
    "catalogue",
    "nsys_messages",
    "advice",
    "records",
    "rows",
    "gpus",
    "model",
    "__init__",
    "outputs",
    "inject",
    "recording",
    "frames",
    "reading",
    "events",
    "roofline",
    "replay",
    "analyses",
    "judging",
    "findings",
    "ranks",
    "answer",
    "pipeline",
    "comparing",
    "trying",
    "render",
    "export",
    "api",
    "serving",
    "progress",
    "cli",
    "__main__",
)
LEVEL = {room: i for i, room in enumerate(ORDER)}

#: Between reading and render: what turns frames into other frames. The exceptions read their own data.
WORLDLY = ("events/families.py", "ranks/parallel_reading.py", "comparing/side_inputs.py")
PURE = (
    "frames",
    "events",
    "roofline",
    "replay",
    "analyses",
    "judging",
    "findings",
    "ranks",
    "answer",
    "pipeline",
    "comparing",
)

FILES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(
    path
    for path in (PACKAGE.parent / "scripts").iterdir()
    if path.suffix == ".py" or (path.is_file() and "python" in path.read_text(encoding="utf-8").partition("\n")[0])
)
FRAMES = {"polars", "numpy"}
LIBRARIES = {
    **dict.fromkeys(PURE, FRAMES),
    "reading": FRAMES | {"adbc_driver_manager", "adbc_driver_sqlite", "compression"},
    "comparing": FRAMES | {"tomllib", "tomli"},
    "ranks": FRAMES | {"dask", "distributed"},
    "export": FRAMES | {"ncu_report"},
    "__init__": {"nvtx"},
    "api": FRAMES | {"matplotlib"},
    "render": {"rich", "jinja2", "matplotlib", "tomllib", "tomli"},
    "cli": {"typer", "rich", "tomllib", "tomli"},
    "progress": {"rich"},
    "serving": {"mcp", "mcp_types", "anyio"},
    "inject": {"torch", "nvtx"},
}


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file as its syntax tree, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, top_only: bool = False, typed: bool = True) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of every import, without ``typed`` only of those that run."""
    todo: list[ast.AST] = [tree_of(path)]
    while todo:
        node = todo.pop()
        if not typed and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if (
                node.level
            ):  # only the probe: in the program it is a package of its own, whose name has no nsysx before it
                assert "inject" in path.parts, f"{path}: relative import"
                continue
            module = str(node.module)
            if module == "nsysx":
                yield from ((f"nsysx.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno
        todo += ast.iter_child_nodes(node)


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# Each rule is one test over all files: a test for each file and rule took longer to collect and report than to run.


def test_no_room_imports_a_later_one() -> None:
    assert {room_of(path) for path in FILES} <= set(LEVEL), "a room has no place in the order of rooms"
    later = []
    for path in FILES:
        room = room_of(path)
        for module, line in imports(path):
            parts = module.split(".")
            if parts[0] != "nsysx":
                continue
            other = parts[1] if len(parts) > 1 else "__init__"
            if other not in LEVEL:  # a name of the package itself, such as nsysx.__version__
                other = "__init__"
            if other != room and LEVEL[other] >= LEVEL[room]:
                later.append(f"{ids(path)}:{line}: {room} imports {module}")
    assert not later


def test_third_party_packages_stay_where_they_belong() -> None:
    strangers = []
    for path in FILES:
        room = room_of(path)
        allowed = {"nsysx", *sys.stdlib_module_names, *LIBRARIES.get(room, set())}
        allowed |= {"nsysx_probe"} if room == "inject" else set()
        strangers += [f"{ids(path)}:{line}: {m}" for m, line in imports(path) if m.split(".")[0] not in allowed]
    assert not strangers


WORLD = {
    "os", "io", "sys", "sqlite3", "subprocess", "shutil", "tempfile", "socket", "logging", "urllib", "time", "random",
    "rich", "typer",
}  # fmt: skip
WORLDLY_CALLS = {"open", "print", "input", "exec", "eval"}
WORLDLY_METHODS = {
    "read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "touch", "iterdir", "savefig", "write_parquet",
    "read_csv", "write_csv", "scan_parquet",
}  # fmt: skip


def test_between_load_and_render_nothing_touches_the_world() -> None:
    touches = []
    for path in FILES:
        if room_of(path) not in PURE or ids(path) in WORLDLY:
            continue
        touches += [f"{ids(path)}:{line}: imports {m}" for m, line in imports(path) if m.split(".")[0] in WORLD]
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in WORLDLY_CALLS:
                    touches.append(f"{ids(path)}:{node.lineno}: {name}")
                case ast.Call(func=ast.Attribute(attr=name)) if name in WORLDLY_METHODS:
                    touches.append(f"{ids(path)}:{node.lineno}: {name}")
    assert not touches


def test_the_probe_needs_nothing_of_ours() -> None:
    for path in (PACKAGE / "inject").rglob("*.py"):
        for module, line in imports(path):
            name = module.split(".")[0]
            assert name != "nsysx", f"{path.name}:{line}: the target program has no nsysx"
            assert name in sys.stdlib_module_names or name in {"torch", "nvtx", "nsysx_probe"}


def test_the_probe_adds_at_most_two_names_to_the_program() -> None:
    assert {p.name for p in (PACKAGE / "inject").iterdir() if p.name != "__pycache__"} == {
        "sitecustomize.py",
        "nsysx_probe",
    }


@pytest.mark.parametrize(
    "name",
    [
        "cli/process",
        "__main__",
        "recording/capture",
        "recording/machine_checks",
        "errors",
        "units",
        "model",
        "pictures",
        "outputs",
        "render/glossary",
    ],
)
def test_commands_start_without_heavy_packages(name: str) -> None:
    """What runs before a command is chosen, and all of ``run``, imports nothing heavy at top level."""
    reached, todo = set(), [PACKAGE / f"{name}.py"]
    assert todo[0].is_file(), "what is not there imports nothing"
    while todo:
        path = todo.pop()
        if path in reached or not path.exists():
            continue
        reached.add(path)
        for module, line in imports(path, top_only=True, typed=False):
            parts = module.split(".")
            heavy = {"polars", "numpy", "matplotlib", "torch", "nvtx", "jinja2", "rich", "adbc_driver_sqlite", "dask"}
            assert parts[0] not in heavy, f"{path.name}:{line}: {module}, reached from {name}"
            if parts[0] == "nsysx":  # with the __init__ of each folder on the way
                todo += [PACKAGE.joinpath(*parts[1:n], "__init__.py") for n in range(1, len(parts))]
                todo.append(PACKAGE.joinpath(*parts[1:]).with_suffix(".py"))


def test_no_two_files_import_each_other_in_a_circle() -> None:
    names = {path: ".".join(("nsysx", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in FILES}
    known = {name: path for path, name in names.items()} | {n.removesuffix(".__init__"): p for p, n in names.items()}
    edges: dict[Path, set[Path]] = {}
    for path in FILES:
        found = {known.get(m) or known.get(m.rpartition(".")[0]) for m, _ in imports(path)}
        edges[path] = {other for other in found if other is not None and other != path}
    done: set[Path] = set()

    def walk(path: Path, trail: tuple[Path, ...]) -> None:
        if path in done:
            return
        assert path not in trail, " -> ".join(names[p] for p in (*trail[trail.index(path) :], path))
        for other in sorted(edges[path]):
            walk(other, (*trail, path))
        done.add(path)

    for path in FILES:
        walk(path, ())


#: Texts for people: what another room must know of them is a field of its own.
SAID = {"sentence", "title", "detail", "check", "confidence", "reason", "fix", "label", "condition"}
PARSES = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "removeprefix",
    "removesuffix",
    "find",
    "index",
    "strip",
}


def said_by(node: ast.expr) -> str | None:
    """Return the field that an expression reads: ``a.title``, ``row["title"]``, ``row.get("title")``, each in ``str()`` or ``or``."""
    match node:
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[inner]) | ast.BoolOp(values=[inner, *_]):
            return said_by(inner)
    return None


def parsed(tree: ast.AST) -> Iterator[int]:
    """Yield the lines in which a text for people is tested for words, or taken apart by them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSES:
            # Without words it is no test, and a field of the same record is known to stand there.
            text, whole = node.func.value, not node.args or any(ast.unparse(a).endswith(".because") for a in node.args)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            text, whole = node.comparators[0], False
        else:
            continue
        if said_by(text) in SAID and not whole:
            yield node.lineno


def test_no_room_reads_meaning_out_of_a_text_for_people() -> None:
    assert not [f"{ids(path)}:{line}" for path in FILES for line in parsed(tree_of(path))]


def test_what_takes_a_text_apart_is_seen() -> None:
    bad = """
        a.title.startswith("x")
        "x" in a.detail
        other.words in a.fix
        row["title"].split("; ")
        str(row.get("fix") or "").strip("()")
    """
    good = 'a.detail.removesuffix(a.because); name.startswith("x"); "x" in names; a.detail.strip(); row["count"].split("x")'
    assert list(parsed(ast.parse(inspect.cleandoc(bad)))) == [1, 2, 3, 4, 5]
    assert not list(parsed(ast.parse(good)))


#: Names that could hold anything, and words that say where or how much, not what.
SAY_NOTHING = {"found", "mine", "own"}
SAY_LITTLE = {"one", "of", "said", "known", "at", "place"}
#: Files in which such words still name variables.
NOT_YET = {"answer/bars.py", "render/terminal_answer.py"}


def names_bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each local, parameter and module variable with its line; attributes and methods are not among them."""
    fields = {
        id(line.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id, node.lineno


def test_every_variable_says_what_it_holds() -> None:
    no_names = {path: SAY_NOTHING if ids(path) in NOT_YET else SAY_NOTHING | SAY_LITTLE for path in FILES}
    no_names |= dict.fromkeys(SCRIPTS, SAY_NOTHING | SAY_LITTLE)
    bound = [(path, name, line) for path in no_names for name, line in names_bound(tree_of(path))]
    assert not [f"{path.name}:{line} {name}" for path, name, line in bound if name in no_names[path]]


def test_a_variable_that_says_nothing_is_seen() -> None:
    bad = "def f(own):\n    for mine in own:\n        found = mine"
    assert sorted(name for name, _ in names_bound(ast.parse(bad)) if name in SAY_NOTHING) == ["found", "mine", "own"]
