"""How a program gives its tables of embeddings sparse gradients: by one more argument where they are made, and by which optimizer."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace

from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.operator_flow import flow_of
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings._case import Case, way
from nsysx.findings._pieces_in_text import with_keywords
from nsysx.findings._tables_of_ranks import FewRows
from nsysx.model import Row
from nsysx.records import count_or_zero

_SPARSE = "sparse=True"
#: Optimizers of torch that update by sparse gradients as they are, and what they must be told not to.
_TAKE_SPARSE = {
    "Adagrad": "fused=True and weight decay",
    "SGD": "momentum and weight decay",
    "SparseAdam": "",
}
_ROWS_ALONE = "only the rows that a step used are updated"
#: What the tables are in the program, and their own optimizer.
_TABLES = "tables = [m.weight for m in model.modules() if getattr(m, 'sparse', False)]"
_OPTIMIZER = "table_optimizer = torch.optim.SparseAdam(tables, lr=lr)"
_WRAPPER = "DistributedDataParallel."
_NOT_REDUCED = (
    " NCCL reduces no sparse gradients: keep these tables out of DistributedDataParallel, and gather the indices and values of their "
    "gradients on all ranks."
)
#: Functions that look up.
_FUNCTIONS = ("embedding", "embedding_bag")


def sparse_way(case: Case, tables: FewRows | None) -> Alternative:
    """Return the remedy in the program's own words: the class of its tables, the line that makes them, and its optimizer."""
    sparse, kept, argument = way("sparse-embeddings"), _optimizer(case, tables), _argument(case, tables)
    if kept not in _TAKE_SPARSE:
        beside = f"  # {kept} takes no sparse gradients: it keeps the other parameters" if kept else ""
        condition = f"{sparse.condition}{_outside(tables)}"
        return replace(sparse, paste=f"{argument}\n{_TABLES}\n{_OPTIMIZER}{beside}", condition=condition)
    without = _TAKE_SPARSE[kept]
    return replace(
        sparse,
        text=f"Give large embeddings sparse gradients (sparse=True): {_ROWS_ALONE}. {kept} takes such gradients: keep it",
        paste=argument,
        condition=f"{f'Make {kept} without {without}.' if without else ''}{_outside(tables)}".strip(),
    )


def _outside(tables: FewRows | None) -> str:
    inside = tables is not None and tables.largest is not None and tables.largest.module.startswith(_WRAPPER)
    return _NOT_REDUCED if inside else ""


def made_at(case: Case, tables: FewRows | None) -> Row:
    """Return file and line where the program makes the largest of these tables, empty where that was not noted."""
    return {} if tables is None or tables.largest is None else file_and_line(_noted(case, tables).get("made"))


def _noted(case: Case, tables: FewRows) -> Row:
    settings, largest = settings_of(case.profile), tables.largest
    noted = (None if settings is None else settings.rows("tables")) or ()
    if largest is None:
        return {}
    size = [largest.rows, largest.width]
    alike = [row for row in noted if [row.get("rows"), row.get("width")] == size]
    return next((row for row in alike if row.get("class") == largest.cls), alike[0] if len(alike) == 1 else {})


def _optimizer(case: Case, tables: FewRows | None) -> str:
    """Return the class of the optimizer that holds the tables: of several, the one with the fewest parameters that could; "" if unknown."""
    settings = settings_of(case.profile)
    rows = (None if settings is None else settings.rows("optimizers")) or ()
    least = 0 if tables is None else tables.elements
    holds = [row for row in rows if count_or_zero(row.get("elements")) >= least]
    if tables is None or not holds:
        return case.program.optimizer_class or ""
    row = min(holds, key=lambda row: count_or_zero(row.get("elements")))
    package, name = str(row.get("module") or "torch"), str(row.get("class") or "")
    return name if package == "torch" or not name else f"{package}.{name}"


def _argument(case: Case, tables: FewRows | None) -> str:
    """Return the line that makes the tables with one more argument, or of what it is one."""
    source = lines.texts(case.profile)
    if tables is None or tables.largest is None:
        return f"{_SPARSE},  # one more argument of nn.Embedding or nn.EmbeddingBag, where the tables are made"
    made, cls = made_at(case, tables), tables.largest.cls
    text = lines.text_of(source, made.get("file"), made.get("line"))
    if text is not None and (changed := with_sparse(text, cls)):
        return changed
    called = lines.text_of(source, tables.where.get("file"), tables.where.get("line"))
    function = next((name for call, name in _calls(called or "") if name in _FUNCTIONS), "")
    if function and called is not None:
        return with_sparse(called, function) or f"{_SPARSE},  # one more argument of {function}"
    flow = flow_of(case.profile)
    kind = "EmbeddingBag" if flow is not None and flow.names[tables.largest.operator].endswith("bag") else "Embedding"
    inside = "" if cls in ("", kind) else f" in {cls}"  # a class of the program's own, with arguments of its own
    return f"{_SPARSE},  # one more argument of nn.{kind}{inside}, where the tables are made"


def with_sparse(text: str, cls: str) -> str | None:
    """Return a line whose calls of a class or function, or of the class's ``from_pretrained``, have sparse=True; None without any."""
    if not text.isascii():
        return None
    calls = []
    for call, name in _calls(text):
        made = isinstance(call.func, ast.Attribute) and name == "from_pretrained" and _last_name(call.func.value) == cls
        if not (made or name == cls) or any(isinstance(n, ast.Constant) and n.value is ... for n in ast.walk(call)):
            continue  # what a line of several does not show is not known
        calls.append(call)
    changed = with_keywords(text, calls, {"sparse": "True"})
    return changed if calls and _tree(changed) is not None else None


def _calls(text: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in a line, each with the last name of what it calls."""
    tree = _tree(text)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and (name := _last_name(node.func)):
            yield node, name


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _tree(text: str) -> ast.Module | None:
    """Return what a line is in Python, None where it is none; one that begins a block is read with an empty one."""
    for whole in (text, f"{text} pass"):
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.parse(whole)
    return None
