from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from nsysx.catalogue import Cause, CpuPart, DeviceActivity, StepLimit, StepPart
from nsysx.render import glossary, html_page
from tests.render import factory

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_every_name_is_explained_once():
    names = [name.lower() for entry in glossary.entries() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert len({glossary.anchor(entry) for entry in glossary.entries()}) == len(glossary.entries())


#: Labels that are whole sentences of plain words.
PLAIN = ("long pauses in which the program does something else", "other CUDA calls", "outside CUDA calls")


@pytest.mark.parametrize("words", [StepLimit, StepPart, DeviceActivity, CpuPart, Cause])
def test_every_label_of_a_page_is_explained(words: type[StepPart]) -> None:
    labels = {getattr(word, name, "") for word in words for name in ("label", "drawn", "noun")} - {"", *PLAIN}
    assert not [label for label in labels if glossary.lookup(label) is None]


def test_the_file_holds_entries_and_nothing_else():
    """A misspelled key would be dropped text: every table has the keys of an Entry, and text without line breaks or blanks
    that belong to the file.
    """
    data = tomllib.loads((Path(glossary.__file__).parent / "glossary.toml").read_text(encoding="utf-8"))
    assert set(data) == set(glossary.KINDS)
    for kind, tables in data.items():
        for table in tables:
            assert set(table) <= {"name", "what", "normal", "cheaper", "aliases"}, table
            assert {"name", "what"} <= set(table), table
            for text in (v for v in table.values() if isinstance(v, str)):
                assert text == " ".join(text.split()), (kind, table["name"], text)
    assert [e.name for e in glossary.entries()] == [t["name"] for kind in glossary.KINDS for t in data[kind]]


def test_every_call_says_what_it_does_and_when_it_is_normal():
    by_kind = {kind: [e for e in glossary.entries() if e.kind == kind] for kind in glossary.KINDS}
    assert all(by_kind.values())
    for entry in by_kind["call"]:
        assert entry.what.endswith("."), entry.name
        assert entry.normal.endswith("."), entry.name
        assert not entry.cheaper or entry.cheaper.endswith("."), entry.name
    for entry in by_kind["word"]:
        assert entry.what.endswith("."), entry.name
    for entry in by_kind["operation"]:
        assert entry.what.endswith(".") and entry.normal.endswith(".") and entry.cheaper.endswith("."), entry.name


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_ptsz", "cudaMemcpyAsync"),
        ("cudaEventRecord_v3020", "cudaEventRecord"),
        ("cudaStreamSynchronize_v3020_ptsz", "cudaStreamSynchronize"),
        ("cuMemcpyHtoDAsync_v2", "cudaMemcpyAsync"),
        ("cuLaunchKernelEx", "cudaLaunchKernel"),
        ("CUDAHOSTALLOC", "cudaHostAlloc"),
        ("gpu busy", "GPU busy"),
    ],
)
def test_a_name_is_found_in_every_spelling_of_the_driver(name, entry):
    assert glossary.lookup(name).name == entry


@pytest.mark.parametrize("name", ["", "torch.nn.Linear", "<script>", "cuda", "x" * 1000])
def test_what_is_not_explained_is_not_guessed(name):
    assert glossary.lookup(name) is None
    assert glossary.key(name) == ""


def test_anchors_are_made_of_harmless_characters():
    for entry in glossary.entries():
        assert re.fullmatch(r"g-[A-Za-z0-9_-]+", glossary.anchor(entry))


def test_a_page_explains_the_words_that_it_uses_and_no_others():
    page = html_page.render(factory.summary())
    words = page.partition('id="glossary"')[2]
    for name in ("cudaStreamSynchronize", "backlog", "step"):
        assert f">{name}</dt>" in words
    for name in ("cudaMemPoolCreate", "not sampled"):
        assert f">{name}</dt>" not in words
    used = [e.name for e in glossary.explained('<p title="backlog">Two kernels, one <b>step</b>.</p>', ())]
    assert used == ["step", "kernel"], "a tooltip is not read"


@pytest.mark.parametrize(
    ("name", "entry"),
    [("nonzero", "nonzero"), ("item", "item"), (".item()", "item"), ("unique", "unique"), ("masks", "boolean mask")],
)
def test_operations_that_wait_are_explained(name: str, entry: str) -> None:
    found = glossary.lookup(name)
    assert found is not None and found.name == entry
    assert "wait" in found.what and found.cheaper


def test_calls_that_reports_hold_and_the_words_of_the_advice_are_explained():
    strangers = (
        "cuKernelGetName", "cuKernelGetAttribute", "cudaThreadExchangeStreamCaptureMode", "cuMemAddressFree", "cudaMemPoolCreate",
        "cudaGraphExecDestroy", "cuMemExportToShareableHandle", "cuCtxSetCurrent",
    )  # fmt: skip
    advice = (
        "torch.compile", "cuda.Event", "torch.cuda.Event", "reduce-overhead", "fused=True", "pin_memory", "non_blocking=True",
        "torch.set_float32_matmul_precision", "num_workers", "empty_cache", "expandable_segments", "no_sync", "torch.save",
        "torch.cuda.synchronize",
    )  # fmt: skip
    for name in (*strangers, *advice):
        assert glossary.lookup(name), name
