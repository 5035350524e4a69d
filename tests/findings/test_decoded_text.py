"""NSX123: tokens that are decoded and encoded again, and text that is needed as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._decoded_text import _both_ways
from tests.findings.lined import Lined, forward
from tests.findings.test_line_remedies import first

DECODES, ENCODES = (
    "texts = tok.batch_decode(seqs, skip_special_tokens=True)",
    'enc = rm_tok(texts, padding=True, return_tensors="pt").to(dev)',
)


@pytest.mark.parametrize(
    ("decodes", "between", "encodes"),
    [
        (DECODES, "", ENCODES),
        (
            "texts = [tok.decode(ids) for ids in seqs]",
            "lengths = [len(t) for t in texts]",
            "enc = self.tokenizer(text=texts)",
        ),
        (
            "answer: list[str] = self.tok.batch_decode(out)",
            "",
            "ids = judge_tokenizer.batch_encode_plus(answer, padding=True)",
        ),
        ("texts = tok.batch_decode(seqs)", "", "batch = processor(text=texts, images=images)"),
    ],
)
def test_text_that_is_decoded_and_encoded_as_it_is(decodes: str, between: str, encodes: str) -> None:
    assert _both_ways({"10": decodes, "11": between, "14": encodes}) == {10, 14}


@pytest.mark.parametrize(
    ("between", "encodes"),
    [
        ("texts = [prompt + t for t in texts]", ENCODES),  # other text
        ("", "enc = rm_tok(texts + questions)"),
        ("", "reward = [len(t) for t in texts]"),
        ("", "names = detokenize(texts)"),
        ("", "enc = rm_tok(prompts, padding=True)"),
    ],
)
def test_text_that_something_else_is_done_with(between: str, encodes: str) -> None:
    assert not _both_ways({"10": DECODES, "11": between, "14": encodes})
    assert not _both_ways({"10": DECODES, "140": ENCODES})


def test_both_lines_are_told_at_once(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        forward(program)
        with program.line(12):
            program.copy(20, "DtoH")
            program.host(2_000)
        with program.line(13):
            program.host(3_000)
            program.copy(20)
        forward(program)
        with program.line(30):
            program.sync()

    summary = Lined({12: DECODES, 13: ENCODES}).run(body).summary(tmp_path)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX123" and f.verdict == "found")
    assert [way.name for way in finding.remedies] == ["ids-passed-on"] and first(summary)[0] == "NSX123"
    assert finding.saving.likely_ns == pytest.approx(5_000_000, rel=0.1)
