"""Lines with whole Fourier transforms of real numbers, in the program's own statements with those that leave the mirrored half out."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from nsysx.findings._pieces_in_text import OtherFormError, function_of_call, only_statement

_FORTH = {"fft": "rfft", "fft2": "rfft2", "fftn": "rfftn"}
_BACK = {"ifft": "irfft", "ifft2": "irfft2", "ifftn": "irfftn"}
#: The argument that says how long the result is.
_LENGTH = {"fft": "n", "fft2": "s", "fftn": "s", "ifft": "n", "ifft2": "s", "ifftn": "s"}


def halved(lines: Mapping[int, str]) -> str:
    """Return those of some statements (line -> text) of a function that change, "" where one of them is of no form that is known."""
    halves, statements = _Halves(), list[str]()
    try:
        for number in sorted(lines):
            statement = only_statement(lines[number].partition("  #")[0])
            if statement is None:
                return ""
            before, spectra = ast.unparse(statement), halves.is_spectrum(getattr(statement, "value", None))
            after = ast.unparse(halves.visit(statement))
            if isinstance(statement, ast.Assign) and spectra:
                halves.names |= {ast.unparse(each) for each in statement.targets}
            statements += [after] if after != before else []
    except OtherFormError:
        return ""
    return "\n".join(statements) if halves.forth and halves.back else ""


class _Halves(ast.NodeTransformer):
    """``names`` of spectra; whether transforms were put ``forth`` and ``back``."""

    def __init__(self) -> None:
        self.names = set[str]()
        self.forth = self.back = False
        self._lengths = dict[str, ast.expr]()

    def is_spectrum(self, node: ast.expr | None) -> bool:
        """Return whether an expression is a half of a spectrum, once its transforms are."""
        if isinstance(node, ast.BinOp):
            return self.is_spectrum(node.left) or self.is_spectrum(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and function_of_call(node) == "conj":
            return self.is_spectrum(node.func.value)
        named = isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.names
        return named or (node is not None and function_of_call(node) in _FORTH)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        sides = (node.left, node.right)
        spectra = [self.is_spectrum(each) for each in sides]
        if any(spectra) and not all(spectra) and not isinstance(sides[spectra.index(False)], ast.Constant):
            raise OtherFormError  # a factor that is whole
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        of_back = node.attr == "real" and function_of_call(node.value) in _BACK
        self.generic_visit(node)
        return node.value if of_back else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = function_of_call(node)
        self.generic_visit(node)
        if name not in _FORTH and name not in _BACK:
            return node
        length = _length(node, name)
        if name in _FORTH:
            given = node.args[0] if node.args else None
            if length is None and isinstance(given, ast.Name | ast.Attribute):
                length = _own_length(node, name, given)
            if length is not None:
                self._lengths.setdefault(name, length)
            self.forth = True
        elif length is None:
            if name[1:] not in self._lengths:
                raise OtherFormError
            node.keywords.append(ast.keyword(_LENGTH[name], self._lengths[name[1:]]))
        self.back |= name in _BACK
        return _renamed(node, (_FORTH | _BACK)[name])


def _renamed(node: ast.Call, name: str) -> ast.Call:
    if isinstance(node.func, ast.Attribute):
        node.func.attr = name
        return node
    raise OtherFormError  # a name that the program imports


def _length(node: ast.Call, name: str) -> ast.expr | None:
    named = next((each.value for each in node.keywords if each.arg == _LENGTH[name]), None)
    length = named or (node.args[1] if len(node.args) > 1 else None)
    return None if isinstance(length, ast.Constant) and length.value is None else length


def _own_length(node: ast.Call, name: str, given: ast.expr) -> ast.expr | None:
    """Return how long a tensor is where it is transformed, None where that takes several dimensions that it names."""
    dim = next(
        (each.value for each in node.keywords if each.arg == "dim"), node.args[2] if len(node.args) > 2 else None
    )
    text = ast.unparse(given)
    if name == "fft":
        return ast.parse(f"{text}.size({ast.unparse(dim) if dim is not None else -1})", mode="eval").body
    if name == "fft2" and (dim is None or ast.unparse(dim) == "(-2, -1)"):
        return ast.parse(f"{text}.shape[-2:]", mode="eval").body
    return None
