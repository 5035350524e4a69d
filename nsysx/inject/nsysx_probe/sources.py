"""Tells the program's own code from that of libraries, by its file, and knows the text of the lines that had ranges.

``user`` is all but torch, Python's standard library, generated code and nsysx; what lies in site-packages is a ``package``.
NSYSX_SOURCE names others, by the beginning of their path or by the name of their package: ``PREFIX`` makes them the user's,
``!PREFIX`` leaves them out.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from types import CodeType
from typing import Any

from .layer_options import LayerOption, layer_options
from .probe_bounds import MOST_LOOP_LINES, MOST_RANK_LINES, MOST_SOURCE_BYTES, MOST_SOURCE_LETTERS, MOST_SOURCE_LINES
from .rank_orders import RankOrder, rank_orders
from .statements import in_one_line, of_loop, without_comment

#: What belongs to torch (sympy computes shapes for its compiler), and what the probe itself calls.
_LIBRARIES = ("torch", "torchgen", "functorch", "triton", "sympy", "mpmath", "nvtx")
#: Lines that may take a rank's share of something: they name a rank, and cut or count.
_OF_A_RANK = re.compile(r"(?i)^(?!\s*#).*rank")
#: Lines that may deal a stream out to the workers of a loader.
_OF_A_WORKER = re.compile(
    r"^(?!\s*#)(?=.*n(um)?_?workers\b)(?=.*(info\w*\.id|worker_id|wid|worker)\b).*(%|\bislice\(|::)"
)
_CUTS = re.compile(r"\[|\b(chunk|\w*split|\w*range|islice|narrow)\(")
#: Lines that may cut a network in stages: they divide by the number of stages or ranks, take layers by it, or name where to split.
_CUTS_STAGES = re.compile(r"(?i)^(?!\s*#).*(//.*(stage|world|rank)|\[.*stage.*:.*\]|\bSplitPoint\.)")
#: What sets how many layers each stage has: numbers under such a name.
_COUNTS_OF_STAGES = re.compile(
    r"(?i)^(?!\s*#).*\b\w*(stage|layer|block)\w*[\"']?\s*[:=]\s*[\[(]\s*\d+(\s*,\s*\d+)+\s*,?\s*[\])]"
)
#: What a plan asks for that has the outputs of a split layer gathered, or added up for all ranks, or its input gathered for it alone.
_PLAN = re.compile(
    r"^(?!\s*#).*(\boutput_layouts\s*=\s*[(\[]*\s*Replicate\b|\bRowwiseParallel\(\s*\)|"
    r"\bColwiseParallel\(.*\binput_layouts\s*=\s*[(\[]*\s*Shard\b)"
)
#: What shards a network, with its options.
_SHARDS = re.compile(r"^(?!\s*#).*\b(fully_shard|MixedPrecisionPolicy)\(.*\)\s*(#.*)?$")
#: What gathers whole tensors of the parts of all ranks: an average of weights may be made so before the steps.
_GATHERS = re.compile(r"^(?!\s*#).*\.full_tensor\(")
#: What names an order of a pipeline's passes, as an option of a config does.
_SCHEDULES = re.compile(r"(?i)^(?!\s*#).*([\"'])(Schedule)?GPipe\1")
#: What has a function of autograd convert whatever it is given.
_CASTS = re.compile(r"^\s*@.*\bcast_inputs\s*=")
#: What wraps parts of a network in checkpoints, before the steps.
_WRAPS = re.compile(r"^(?!\s*#).*\b(apply_activation_checkpointing|\w*checkpoint_wrapper)\(")
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = "torchinductor_"
#: The files of the probe's own code, as its frames name them.
_FOLDER = os.path.dirname((lambda: None).__code__.co_filename)  # noqa: PTH120
#: When the program had begun: torch was imported, nothing of its own had run with it.
_BEGAN = time.time()
OWN_FILES = frozenset(f"{_FOLDER}{os.sep}{name}" for name in os.listdir(_FOLDER or ".") if name.endswith(".py"))  # noqa: PTH208


def _gives_shares(text: str) -> bool:
    """Return whether a line may take a rank's or a worker's share, cut a network in stages or count their layers, plan their split,
    shard, gather or checkpoint them, convert what a function is given, or name an order of passes.
    """
    takes = _OF_A_RANK.search(text) and _CUTS.search(text)
    texts = (_OF_A_WORKER, _CUTS_STAGES, _COUNTS_OF_STAGES, _PLAN, _SHARDS, _GATHERS, _SCHEDULES, _CASTS, _WRAPS)
    return bool(takes or any(each.search(text) for each in texts))


class Sources:
    """``kind`` of a code is user, package, or empty if it gets no ranges."""

    def __init__(self, torch: Any, environ: Mapping[str, str]) -> None:
        home = os.path.dirname(os.path.abspath(os.__file__))  # noqa: PTH100, PTH120 - importing pathlib takes milliseconds
        version = "".join(map(str, sys.version_info[:2]))
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
        of_torch = os.path.dirname(os.path.abspath(getattr(torch, "__file__", None) or "torch"))  # noqa: PTH100, PTH120
        cache = environ.get("TORCHINDUCTOR_CACHE_DIR")
        self._standard = f"{home}{os.sep}"
        left_out = [of_torch, ours, *([os.path.abspath(cache)] if cache else [])]  # noqa: PTH100
        left_out += [p for p in sys.path if p.endswith(f"python{version}.zip")]
        self._left_out = tuple(f"{folder}{os.sep}" for folder in left_out)
        self.added: list[str] = []
        self._removed: list[str] = []
        for word in filter(None, environ.get("NSYSX_SOURCE", "").split(os.pathsep)):
            (self._removed if word[0] in "!-" else self.added).append(word.lstrip("!-"))
        self._keeps_text = environ.get("NSYSX_NO_SOURCE") != "1"
        self._kinds: dict[str, str] = {}
        self._began = _BEGAN
        self._lines: dict[str, dict[int, str]] = {}  # of each file: the lines that had ranges, and their text
        self._asked: dict[str, set[int]] = {}  # likewise other lines whose text is asked for
        self._packages: set[str] = set()
        self._read: tuple[int, dict[str, dict[str, str]]] | None = None
        self._of_ranks: tuple[int, dict[str, dict[str, str]]] | None = None
        self._orders: tuple[int, list[tuple[str, RankOrder, str]]] | None = None
        self._options: tuple[int, list[LayerOption]] | None = None

    def kind(self, code: CodeType) -> str:
        """Return whose code this is."""
        return self.kind_of_file(code.co_filename)

    def kind_of_file(self, file: str) -> str:
        """Return whose code a file is."""
        kind = self._kinds.get(file)
        if kind is None:
            kind = self._kinds[file] = self._kind(file)
        return kind

    def _kind(self, file: str) -> str:
        if file.startswith("<"):
            return ""
        path = os.path.abspath(file)  # noqa: PTH100
        if any(_within(path, prefix) for prefix in self._removed):
            return ""
        if any(_within(path, prefix) for prefix in self.added):
            return "user"
        if path.startswith(self._left_out) or _GENERATED in path or file.endswith(".fx") or is_made_by_run(path):
            return ""
        parts = path.split(os.sep)  # noqa: PTH206
        installed = [i for i, part in enumerate(parts[:-1]) if part in _INSTALLED]
        if installed:
            top = parts[installed[-1] + 1].partition(".")[0]
            return "" if top in _LIBRARIES else "package"
        return "" if path.startswith(self._standard) else "user"

    def path(self, code: CodeType) -> str:
        """Return the file of a code, as an absolute path."""
        path = os.path.abspath(code.co_filename)  # noqa: PTH100
        if path.isascii():
            return path
        try:  # in the C locale Python's own name has surrogates, which cannot be sent
            return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:
            return ascii(path)[1:-1]

    # ---- texts ------------------------------------------------------------------------------------------------------

    def has_seen(self, path: str, number: int) -> bool:
        """Return whether a line had a range."""
        return number in self._lines.get(path, ())

    def seen(self, path: str, number: int, package: bool) -> None:
        """Note a line that has a range."""
        self._lines.setdefault(path, {})[number] = ""
        if package:
            self._packages.add(path)

    def ask(self, noted: str) -> None:
        """Keep the text of a line (file:line) of the user's own files, too, although it had no range: it ran before the steps."""
        file, _, line = noted.rpartition(":")
        if line.isdigit() and self.kind_of_file(file) == "user":
            self._asked.setdefault(file, set()).add(int(line))

    def ask_loop(self, path: str, number: int) -> None:
        """Keep the texts of the innermost loop around a line, too: its head, and lines of it that run so shortly that none was seen."""
        if self._keeps_text and self.kind_of_file(path) == "user":
            numbers = of_loop(self._texts(path), number)[:MOST_LOOP_LINES]
            if numbers:
                self._asked.setdefault(path, set()).update(numbers)

    def texts(self) -> dict[str, dict[str, str]]:
        """Return the text of each line that had a range or is asked for, by file and number; those of the user's own files come first.

        What goes on over further lines is told in one, with the indent of the first, and comments are not. A file that was changed after
        the program began, or cannot be read, has none.
        """
        if not self._keeps_text:
            return {}
        count = sum(map(len, (*self._lines.values(), *self._asked.values())))
        if self._read is not None and self._read[0] == count:
            return self._read[1]
        texts_of: dict[str, dict[str, str]] = {}
        left = MOST_SOURCE_LINES
        for path in sorted({*self._lines, *self._asked}, key=lambda p: (p in self._packages, p)):
            numbers = sorted({*self._lines.get(path, ()), *self._asked.get(path, ())})[:left]
            texts = self._texts(path) if numbers else None
            if texts:
                whole = in_one_line(texts, numbers)
                told = {n: whole.get(n) or texts[n - 1].strip() for n in numbers if n <= len(texts)}
                texts_of[path] = {
                    # Which loop a line stands in is told by its indent.
                    str(n): _indent(texts[n - 1]) + without_comment(text[:MOST_SOURCE_LETTERS])
                    for n, text in told.items()
                }
                left -= len(numbers)
        self._read = count, texts_of
        return texts_of

    def of_ranks(self) -> dict[str, dict[str, str]]:
        """Return likewise the lines of the user's own files with ranges that may take a rank's share, or have outputs of split layers or
        weights gathered: they ran before, as in a sampler, or a plan.
        """
        if not self._keeps_text:
            return {}
        if self._of_ranks is not None and self._of_ranks[0] == len(self._lines):
            return self._of_ranks[1]
        texts_of: dict[str, dict[str, str]] = {}
        left = MOST_RANK_LINES
        for path in sorted(set(self._lines) - self._packages):
            lines = enumerate(self._texts(path) if left else (), 1)
            shares = [(str(n), text) for n, text in lines if _gives_shares(text)][:left]
            if shares:
                texts_of[path] = {n: text.strip()[:MOST_SOURCE_LETTERS] for n, text in shares}
                left -= len(shares)
        self._of_ranks = len(self._lines), texts_of
        return texts_of

    def orders_of_ranks(self) -> list[dict[str, Any]]:
        """Return where a seed with the rank in it decides an order, or the size of a batch that is ``drawn``, in the same files.

        ``runs`` tells whether its function had ranges, ``text`` is the statement of the seed, which may have run before the steps.
        """
        if not self._keeps_text:
            return []
        if self._orders is None or self._orders[0] != len(self._lines):
            paths = sorted(set(self._lines) - self._packages)
            by_rank = [(path, order) for path in paths for order in rank_orders("\n".join(self._texts(path)))]
            told = [(path, order, self._statement(path, order.seed)) for path, order in by_rank[:MOST_RANK_LINES]]
            self._orders = len(self._lines), told
        return [
            {
                "file": path,
                "seed": order.seed,
                "order": order.order,
                "drawn": order.drawn,
                "runs": any(order.first <= number <= order.last for number in self._lines[path]),
                "text": text,
            }
            for path, order, text in self._orders[1]
        ]

    def options_of_layers(self) -> list[dict[str, Any]]:
        """Return by which options of the program's own layers lines with ranges run, and the lines that make such layers."""
        if not self._keeps_text:
            return []
        count = sum(map(len, self._lines.values()))
        if self._options is None or self._options[0] != count:
            ran = {path: set(self._lines[path]) for path in sorted(set(self._lines) - self._packages)}
            texts = {path: "\n".join(self._texts(path)) for path in ran}
            self._options = count, layer_options(texts, ran)[:MOST_RANK_LINES]
        return [option._asdict() for option in self._options[1]]

    def _statement(self, path: str, number: int) -> str:
        """Return the text of a line, all of it where it goes on below, without its comment."""
        texts = self._texts(path)
        whole = in_one_line(texts, [number]).get(number) or texts[number - 1].strip()
        return without_comment(whole[:MOST_SOURCE_LETTERS])

    def _texts(self, path: str) -> list[str]:
        cached = getattr(sys.modules.get("linecache"), "cache", {}).get(path)  # a notebook's cells are only there
        name = path.encode()
        try:
            if os.stat(name).st_mtime > self._began or os.stat(name).st_size > MOST_SOURCE_BYTES:  # noqa: PTH116
                return []
            with open(name, "rb") as file:  # noqa: PTH123
                return _lines_of(file.read())
        except (OSError, ValueError):
            return list(cached[2]) if cached is not None and len(cached) == 4 else []


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())] if text.strip() else ""


def is_made_by_run(path: str) -> bool:
    """Return whether a file lies in a temporary folder and was written while the program ran, or is gone: a library made it.

    The user's own script may lie there, too, but was there before. What a notebook runs has no file, and ``linecache`` holds its text.
    """
    folders = (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp")
    if not path.startswith(tuple(folder.rstrip(os.sep) + os.sep for folder in folders)):
        return False
    try:
        return os.stat(path).st_mtime > _BEGAN  # noqa: PTH116
    except (OSError, ValueError):
        return path not in getattr(sys.modules.get("linecache"), "cache", {})


def _lines_of(source: bytes) -> list[str]:
    """Return the lines of a source as Python counts them: in the encoding that it declares, and none begins at a form feed."""
    head = b"\n".join(source.split(b"\n", 2)[:2])
    declared = re.search(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", head, re.MULTILINE)
    try:
        text = source.decode(declared[1].decode() if declared else "utf-8", "replace")
    except LookupError:
        text = source.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _within(path: str, prefix: str) -> bool:
    """Return whether a file belongs to a prefix: the beginning of its path, or the name of its package."""
    if os.sep in prefix or prefix.startswith((".", "~")):
        return path.startswith(os.path.abspath(os.path.expanduser(prefix)))  # noqa: PTH100, PTH111
    name = prefix.replace(".", os.sep)
    return f"{os.sep}{name}{os.sep}" in path or path.endswith(f"{os.sep}{name}.py")
