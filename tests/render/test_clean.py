from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.render import safe_text
from nsysx.render.safe_text import clean, file_name, scrub, shorten, shorten_column, shorten_kernel, shorten_stack
from tests.counted_calls import calls_of
from tests.render.factory import HOSTILE, KERNEL_NAMES

INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(st.characters(), max_size=400), st.integers(1, 200))
def test_clean_leaves_nothing_invisible_and_keeps_its_limit(text, limit):
    out = clean(text, limit)
    assert len(out) <= limit
    assert not any(unicodedata.category(c) in INVISIBLE for c in out)


def test_clean_makes_what_it_hides_readable():
    assert clean("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
    assert clean("a\u202eb") == "a\\u202eb"
    assert clean("line\nbreak\u2028x\x9b") == "line\\x0abreak\\u2028x\\x9b"
    assert clean("\ud800") == "\\ud800"
    assert clean("核函数 é ok") == "核函数 é ok"
    assert len(clean("e" + "\u0301" * 50)) == 5


def test_a_name_of_a_megabyte_is_cut_before_it_is_looked_at():
    assert calls_of(lambda: clean("\x1b" * 1_000_000)) < 1_000


@given(st.text(max_size=100), st.integers(0, 120))
def test_shorten_keeps_the_width_and_both_ends(text, width):
    out = shorten(text, width)
    assert len(out) <= max(width, 0)
    if len(text) <= width:
        assert out == text
    elif width > 5:
        assert out.startswith(text[0])
        assert out.endswith(text[-1])


@given(st.text("ab<>():,-", max_size=80), st.integers(3, 60))
def test_shorten_kernel_keeps_the_width_whatever_the_brackets(text, width):
    assert len(shorten_kernel(text, width)) <= width


def test_a_kernel_loses_first_what_says_least():
    name = KERNEL_NAMES[0]
    assert shorten_kernel(name, 400) == name.removeprefix("void ")
    assert shorten_kernel(name, 100) == "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >"
    assert shorten_kernel(name, 66) == "vectorized_elementwise_kernel<4, FillFunctor<…>, array<…> >"
    assert shorten_kernel(name, 40) == "vectorized_elementwise_kernel<4, FillFu…"
    assert shorten_kernel("wgrad_engine<float, (int)128, (bool)1>(int)", 30) == "wgrad_engine<float, 128, 1>"
    assert shorten_kernel(KERNEL_NAMES[2], 40) == "sm90_xmma_gemm_bf16bf16_…rnel__5x_cublas"


def test_home_folders_go():
    assert scrub("/home/alice/x.py /Users/bob/y C:\\Users\\eve\\z /root/a") == "~/x.py ~/y ~\\z ~/a"
    assert scrub("/opt/tools/x") == "/opt/tools/x"
    assert scrub("/rootless/x") == "/rootless/x"
    assert file_name("/home/alice/secret/train/losses.py", redact=True) == "train/losses.py"
    assert file_name("/data/clusters/alice/train/losses.py", redact=True) == "train/losses.py"
    assert file_name("/home/alice/losses.py", redact=True) == "losses.py"
    assert file_name("/home/alice/losses.py", redact=False) == "/home/alice/losses.py"


@pytest.mark.parametrize(
    "path",
    [
        r"C:\Users\eve\z.py",
        r"c:\users\Eve Lee\z.py",
        r'"C:\\Users\\eve\\z.py"',
        "C:/Users/eve/z.py",
        "/mnt/c/Users/eve/z.py",
    ],
)
def test_home_folders_of_windows_and_wsl_go(path: str) -> None:
    found = scrub(f"open {path}: failed")
    assert "ve" not in found
    assert "z.py" in found


def test_hostile_names_are_bounded():
    for name in HOSTILE:
        assert len(clean(name)) <= 200


def test_different_kernels_never_look_alike():
    names = [
        f"void at::native::reduce<4, at::native::Op<{a}>, std::array<char*, {b}> >(int)"
        for a in ("float", "long")
        for b in (2, 3)
    ]
    for width in (26, 34, 60):
        texts = shorten_column([*names, names[0], "other"], "name", width)
        assert all(len(text) <= width for text in texts)
        assert len(set(texts)) == 5, texts
        assert texts[4] == texts[0]
        assert texts[0].startswith("reduce<4")


def test_folders_of_places_stand_in_all_rows_or_in_none():
    """One row of a table said "/srv/me/job.py:150 train" among rows that said "job.py:69", of the same file."""
    near, far = "/home/me/project/job.py:150 train", "/home/me/project/job.py:69 PeriodDiscriminator.forward"
    assert shorten_column([near, far], "file", 60) == [near, far]
    assert shorten_column([near, far], "file", 40) == ["job.py:150 train", "job.py:69 PeriodDiscriminator.forward"]
    assert shorten_column([near, far], "file", 33) == ["job.py:150 train", "job.py:69"]
    other = "/home/me/library/job.py:150 train"
    apart = shorten_column([near, other, far], "file", 33)
    assert len(set(apart)) == 3
    assert all(len(text) <= 33 for text in apart)


@given(st.lists(st.text("ab<>:(", max_size=40), max_size=8), st.integers(3, 30))
def test_a_column_keeps_its_width(names, width):
    texts = shorten_column(names, "name", width)
    assert len(texts) == len(names)
    assert all(len(text) <= width for text in texts)


def test_json_says_the_same_with_nothing_active_in_it() -> None:
    names = {"\u202ekernel\u2066": ["\x9b31m", "\x7f", "\u2028", "\ufeff", "größer 核"], "plain": "a"}
    raw = json.dumps(names, ensure_ascii=False)
    text = safe_text.harmless_json(raw)
    assert json.loads(text) == names
    assert not any(char in text for char in "\u202e\u2066\x9b\x7f\u2028\ufeff")
    assert "größer 核" in text
    assert safe_text.harmless_json('{"plain": "a"}') == '{"plain": "a"}'


def test_of_a_stack_the_innermost_lines_are_whole():
    lines = ["train.py:216 <module>", "train.py:206 main", "agent.py:152 Agent.learn", "nets.py:127 Critic.forward"]
    assert shorten_stack(";".join(lines), 200) == "; ".join(lines)
    assert shorten_stack(";".join(lines), 60) == "…; agent.py:152 Agent.learn; nets.py:127 Critic.forward"
    assert shorten_stack(";".join(lines), 30) == "…; nets.py:127 Critic.forward"
    assert len(shorten_stack(";".join(lines), 12)) <= 12
    assert safe_text.shorten_cell(";".join(lines), "stack", 30) == shorten_stack(";".join(lines), 30)
