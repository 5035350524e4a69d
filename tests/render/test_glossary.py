from __future__ import annotations

import re

import pytest

from nsysx.render import glossary
from tests.render import factory


def test_every_name_is_explained_once():
    names = [name.lower() for entry in glossary.ENTRIES for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert len({glossary.anchor(entry) for entry in glossary.ENTRIES}) == len(glossary.ENTRIES)


def test_every_call_says_what_it_does_and_when_it_is_normal():
    for entry in glossary.CALLS:
        assert entry.what.endswith("."), entry.name
        assert entry.normal.endswith("."), entry.name
        assert not entry.cheaper or entry.cheaper.endswith("."), entry.name
    for entry in glossary.WORDS:
        assert entry.what.endswith("."), entry.name


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
    for entry in glossary.ENTRIES:
        assert re.fullmatch(r"g-[A-Za-z0-9_-]+", glossary.anchor(entry))


def test_a_page_explains_the_calls_that_it_names():
    used = {entry.name for entry in glossary.used(factory.summary())}
    assert {"cudaStreamSynchronize", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaHostAlloc", "backlog", "step"} <= used
    assert "cuLibraryLoadData" not in used


@pytest.mark.parametrize(
    ("name", "entry"),
    [("nonzero", "nonzero"), ("item", "item"), (".item()", "item"), ("unique", "unique"), ("masks", "boolean mask")],
)
def test_operations_that_wait_are_explained(name: str, entry: str) -> None:
    found = glossary.lookup(name)
    assert found is not None and found.name == entry
    assert "wait" in found.what and found.cheaper
