"""NSX123: caches that are asked for another key than they store under, and caches that miss rightly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nsysx.findings._cache_texts import caches_with_unlike_keys, empties
from nsysx.model import Finding
from tests.findings.lined import Lined, forward


def texts(*lines: str, first: int = 10) -> dict[int, str]:
    return {number: line for number, line in enumerate(lines, first) if line}


@pytest.mark.parametrize(
    ("lines", "asked", "stored", "paste"),
    [
        (
            ("if n not in table:", "    t = make(n)", '    table[f"{n}_{x.device}"] = t.to(x.device)', 'y = x @ table[f"{n}_{x.device}"]'),
            "n",
            'f"{n}_{x.device}"',
            'if f"{n}_{x.device}" not in table:',
        ),
        (  # the hit branch reads what the test asks for
            ("if not n in self.masks:", "    m = build(n)", "    self.masks[n, dev] = m", "", "    m = self.masks[n]"),
            "n",
            "(n, dev)",
            "self.masks[n] = m",
        ),
        (
            ("mask = cache.get(key)", "if mask is None:", "    # a remark", "    cache[key, size] = mask = build(size)"),
            "key",
            "(key, size)",
            "cache[key] = mask = build(size)",
        ),
        (
            ("if n in windows:", "", "w = np.hanning(n)", "windows[str(n)] = w", "return w"),
            "n",
            "str(n)",
            "windows[n] = w",
        ),
        (
            ("name = str(n)", "if (f := filters.get(n)) is None:", "    filters[name] = f = make(n)"),
            "n",
            "name",
            "filters[n] = f = make(n)",
        ),
        (  # where the key is made stands below the test
            ("if n not in table:", '    key = f"{n}/{dtype}"', "    table[key] = make(n)", 'return table[f"{n}/{dtype}"]'),
            "n",
            "key",
            "",
        ),
        (("if 'mel' not in kept:", "    kept['mels'] = mel()", "x = kept['mels']"), "'mel'", "'mels'", "if 'mels' not in kept:"),
    ],
)  # fmt: skip
def test_a_key_that_is_asked_and_another_one_that_is_stored(
    lines: tuple[str, ...], asked: str, stored: str, paste: str
) -> None:
    (cache,) = caches_with_unlike_keys(texts(*lines))
    assert (cache.asked, cache.stored, cache.paste) == (asked, stored, paste)


@pytest.mark.parametrize(
    "lines",
    [
        ("if n not in table:", "    table[n] = make(n)", "y = table[n]"),
        ("key = (n, dev)", "if key not in table:", "    table[n, dev] = make(n)", "y = table[key]"),
        ("if n not in table:", "    table[n] = a = make(n)", "    table[n, 1] = a + 1", "y = table[n]"),
        ("if n not in seen:", "    table[n, dev] = make(n)"),  # another dictionary
        ("if child not in tree:", "    tree[parent] = make(n)"),  # another thing
        ("if n not in table:", "    table.clear()", "    table[n, dev] = make(n)", "y = table[n, dev]"),
        ("table = {}", "if n not in table:", "    table[n, dev] = make(n)", "y = table[n, dev]"),
        ("if n not in table:", "", "", "    table[n, dev] = make(n)"),  # what an else lets run
        ("if n in table:", "    table[n, dev] = make(n)"),
        ("for n in sizes:", "    table[n, dev] = make(n)"),
        ("if name not in table:", "    name = new_name()", "    table[name] = make(name)", "y = table[name]"),
        ("if n not in table:", "    continue", "table[n, dev] = make(n)"),
    ],
)
def test_other_lines_are_no_cache_with_unlike_keys(lines: tuple[str, ...]) -> None:
    assert caches_with_unlike_keys(texts(*lines)) == []


def test_what_empties_a_cache() -> None:
    assert all(empties(text, "self.kept") for text in ("  self.kept = {}", "self.kept.clear()", "del self.kept[n]"))
    assert not any(empties(text, "self.kept") for text in ("kept = {}", "x = self.kept", "self.kept[n] = x", "for"))


GUARD, MAKES, STORES, USES = 12, 13, 14, 15
UNLIKE = {
    GUARD: "    if n not in table:",
    MAKES: "        f = filters(n)",
    STORES: "        table[n, x.device] = torch.from_numpy(f).to(x.device)",
    USES: "    return x @ table[n, x.device]",
    40: "    for i in range(n):",
    41: "        f[i] = np.minimum(up[i], down[i])",
}


def told(folder: Path, source: Mapping[int, str], *, new_sizes: bool = False, misses: bool = True) -> list[Finding]:
    """Return what is found where the lines below the test take 4 ms of each step, and the network half of one."""

    def body(program: Lined, number: int) -> None:
        forward(program)
        with program.line(11):
            for _ in range(2):
                with program.line(GUARD, "filtered"):
                    program.host(2)
                if misses or number == 0:
                    with program.line(MAKES, "filtered"):
                        for _ in range(20):
                            with program.line(40, "filters"):
                                program.host(5)
                            with program.line(41, "filters"):
                                program.host(90)
                    with program.line(STORES, "filtered"):
                        program.host(60)
                        program.copy(20, bytes=4096 * (1 + number * new_sizes))
                with program.line(USES, "filtered"):
                    program.launch(30)
        forward(program)
        with program.line(30):
            program.sync()

    findings = Lined(source).run(body).found(folder, "NSX123")
    return [f for f in findings if f.where.get("line") in (GUARD, MAKES, STORES, 40, 41)]


def test_a_cache_that_never_hits_is_told_with_all_that_it_makes(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, UNLIKE)
    assert [way.name for way in finding.remedies] == ["one-cache-key"] and finding.where["line"] == GUARD
    assert "filled anew in each step: asked for `n`, stored under `(n, x.device)`" in finding.title
    assert finding.paste == "if (n, x.device) not in table:"
    assert finding.saving.likely_ns == pytest.approx(4_000_000, rel=0.1)


@pytest.mark.parametrize("twin", ["like keys", "new sizes", "hits", "emptied"])
def test_a_cache_that_misses_rightly_is_no_such_cache(twin: str, tmp_path: Path) -> None:
    source = dict(UNLIKE)
    if twin == "like keys":
        source[GUARD] = "    if (n, x.device) not in table:"
    if twin == "emptied":
        source[30] = "table.clear()"
    findings = told(tmp_path, source, new_sizes=twin == "new sizes", misses=twin != "hits")
    assert "one-cache-key" not in [way.name for f in findings for way in f.remedies]
