"""Files that a reader can hold: the long ones that are left are listed, and the list can only shrink; tuned numbers have one place.

How tangled a function may be is ruff's to say: C901 in pyproject.toml.
"""

from __future__ import annotations

import ast

from tests.test_layers import FILES, PACKAGE, ids

#: Files that are still too long. An entry that is no longer needed fails.
LONG_FILES: set[str] = set()
MOST_LINES = 400
#: What the page is made of: its scripts, style and skeleton.
TEMPLATES = sorted(p for p in (PACKAGE / "render/templates").iterdir() if p.is_file())


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    assert TEMPLATES
    long = {ids(p) for p in (*FILES, *TEMPLATES) if len(p.read_text(encoding="utf-8").splitlines()) > MOST_LINES}
    assert long <= LONG_FILES, f"too long: {sorted(long - LONG_FILES)}"
    assert long >= LONG_FILES, f"no longer too long, take them from the list: {sorted(LONG_FILES - long)}"


#: The files of each room in which its tuned numbers stand, with a comment on what each bounds. A room that is a single file has its own.
BOUNDS = {
    "analyses": ("helpers/analysis_bounds.py",),
    "answer": ("answer_bounds.py",),
    "cli": ("cli_bounds.py",),
    "comparing": ("comparing_bounds.py",),
    "events": ("event_bounds.py", "operator_bounds.py"),
    "export": ("export_bounds.py",),
    "findings": (
        "_finding_bounds.py",
        "_work_bounds.py",
        "_job_bounds.py",
        "_input_bounds.py",
        "_pool_bounds.py",
        "_row_bounds.py",
    ),
    "frames": ("frame_bounds.py",),
    "inject": ("nsysx_probe/probe_bounds.py",),
    "judging": ("judging_bounds.py",),
    "ranks": ("rank_bounds.py",),
    "reading": ("reading_bounds.py",),
    "recording": ("recording_bounds.py",),
    "render": ("render_bounds.py",),
    "replay": ("replay_bounds.py",),
    "roofline": ("roofline_bounds.py",),
    "serving": ("serving_bounds.py",),
    "trying": ("trial_bounds.py",),
}
#: Files with numbers of their own: of the formats of nsys, NVTX and Perfetto, of the style of pictures, and of what runs alone, in a
#: process that knows nothing of this package.
ELSEWHERE = {
    "api/files.py",
    "export/perfetto.py",
    "export/protobuf.py",
    "export/track_events.py",
    "inject/nsysx_probe/calibration.py",
    "inject/nsysx_probe/nvtx_range.py",
    "reading/schema.py",
    "recording/range_holder.py",
    "recording/stand_in.py",
    "recording/witness.py",
    "render/charts/style.py",
}
#: Numbers that nobody tunes: of the interfaces of CUDA, NVML, Linux and Python, of number formats, exit codes, and names for states.
NOT_TUNED = {
    "_DISABLE_TIMING", "_RELAXED", "_LEGACY", "_DONE", "_NOT_READY", "_SHARED_AT_ONCE", "_SM", "_MEMORY", "_TOO_SMALL",
    "_AFTER_AWAIT", "_FUTURES", "SUSPENDED", "_TF32", "_CALLED", "_RAN_BACKWARD", "_STEPPED", "_PR_SET_DUMPABLE",
    "_PR_SET_PDEATHSIG",
}  # fmt: skip


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is made of numbers alone."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def numbers_of(source: str) -> dict[str, int]:
    """Return the names that are numbers at the level of the module, except exit codes, each with its line."""
    numbers = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pairs = [(names, node.value)]
            if isinstance(names, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(names.elts, node.value.elts, strict=True))
            numbers |= {
                name.id: node.lineno for name, value in pairs if isinstance(name, ast.Name) and is_number(value)
            }
    return {name: line for name, line in numbers.items() if not name.startswith("EXIT_") and name not in NOT_TUNED}


def test_tuned_numbers_stand_in_one_place_of_their_room() -> None:
    homes = {f"{room}/{file}" for room, files in BOUNDS.items() for file in files}
    others = [path for path in FILES if "/" in ids(path) and ids(path) not in homes | ELSEWHERE]
    named = {ids(path): sorted(numbers_of(path.read_text(encoding="utf-8"))) for path in others}
    assert {path: names for path, names in named.items() if names} == {}, "they belong into the file of their room"


def test_no_tuned_number_takes_the_name_of_another_one() -> None:
    """The later one would silently take the place of the other."""
    for room, files in BOUNDS.items():
        body = [n for file in files for n in ast.parse((PACKAGE / room / file).read_text(encoding="utf-8")).body]
        targets = (
            n.targets[0] if isinstance(n, ast.Assign) else n.target
            for n in body
            if isinstance(n, (ast.Assign, ast.AnnAssign))
        )
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_each_tuned_number_says_what_it_bounds() -> None:
    homes = [PACKAGE / room / file for room, files in BOUNDS.items() for file in files]
    bare = []
    for path in [*homes, *(path for path in FILES if "/" not in ids(path))]:
        source = path.read_text(encoding="utf-8")
        lines, numbers = source.splitlines(), numbers_of(source)
        if path in homes:
            assert numbers and not [name for name in numbers if name.startswith("_") or len(name) < 4], ids(path)
        begun = sorted(set(numbers.values()))
        # Lines that follow each other share a comment.
        unsaid = [line for line in begun if not lines[line - 2].startswith("#: ") and line - 1 not in begun]
        bare += [f"{ids(path)}: {lines[line - 1]}" for line in unsaid]
    assert bare == []


def test_what_is_said_of_a_tuned_number_stands_with_it_alone() -> None:
    homes = [PACKAGE / room / file for room, files in BOUNDS.items() for file in files]
    lines = {path: set(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    said = {line for path in homes for line in lines[path] if line.startswith("#: ")}
    left = {ids(path): sorted(lines[path] & said) for path in FILES if path not in homes}
    assert said and {path: comments for path, comments in left.items() if comments} == {}


def compared(source: str) -> list[str]:
    """Return the comparisons with a number that has no name: not a count of up to five (dimensions, sides), nor a width in bits."""

    def is_nameless(node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            return is_number(node) and not isinstance(node.op, ast.LShift)
        return is_number(node) and ast.literal_eval(node) not in range(-2, 6)

    comparisons = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    return [ast.unparse(n) for n in comparisons if any(map(is_nameless, (n.left, *n.comparators)))]


#: Files that are about digits, bits, characters and file headers: their numbers are those of the format.
DIGITS = {"units.py", "inject/nsysx_probe/roots.py", "reading/opening.py", "reading/schema.py", "reading/selecting.py",
          "render/charts/colors.py", "render/safe_text.py"}  # fmt: skip


def test_what_is_compared_with_a_tuned_number_says_its_name() -> None:
    assert compared("a > 0.5\nb == 4\nc < 1 << 62\n-1 < d < 1e9\ne == -0.5") == [
        "a > 0.5",
        "-1 < d < 1000000000.0",
        "e == -0.5",
    ]
    nameless = {ids(path): compared(path.read_text(encoding="utf-8")) for path in FILES if ids(path) not in DIGITS}
    assert {path: texts for path, texts in nameless.items() if texts} == {}


def test_a_number_that_stands_elsewhere_is_seen() -> None:
    assert numbers_of("A, B = 1 << 20, -0.5\nC: int = 3\nEXIT_X = 2\nD = True\nE = f(1)\nF = (1, 2)\n") == {
        "A": 1,
        "B": 1,
        "C": 2,
    }


def multiplied(source: str) -> list[int]:
    """Return the lines in which a text is multiplied by a condition, which is there or not: ``if`` says that in words."""

    def is_text(node: ast.expr) -> bool:
        return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))

    def is_condition(node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        return (
            negated
            or isinstance(node, ast.Compare | ast.BoolOp)
            or (isinstance(called, ast.Name) and called.id == "bool")
        )

    products = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    return [n.lineno for n in products if is_text(n.left) and is_condition(n.right)]


def test_no_text_is_multiplied_by_a_condition() -> None:
    assert multiplied("a = 's' * (n != 1)\nb = f'{x}' * bool(y)\nc = '-' * 3\nd = ' ' * (n - 1)\n") == [1, 2]
    assert {ids(path): lines for path in FILES if (lines := multiplied(path.read_text(encoding="utf-8")))} == {}
