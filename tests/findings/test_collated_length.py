"""The length that a program's own collate function pads to, in its own lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.findings import _collated_length, _padding
from nsysx.findings._case import way

ARRAY = (
    "size = self.limit",
    "out = np.full((len(items), size), 0, dtype=np.int64)",
    "for i, (words, tag) in enumerate(items):",
    "n = len(words)",
    "out[i, :n] = words",
    "return torch.from_numpy(out)",
)
TENSOR = (
    "out = batch[0].new_zeros(len(batch), LIMIT)",
    "for i, x in enumerate(batch):",
    "out[i, : len(x)] = x",
    "return out",
)
ENTRIES = ('rows = [F.pad(s["ids"], (0, cfg.limit - len(s["ids"]))) for s in samples]', "return torch.stack(rows)")
#: With a mark before and behind each sample, which need two places more than its items.
MARKED = (
    "width = LIMIT",
    "out = np.full((len(samples), width), 0)",
    "mask = np.zeros((len(samples), width))",
    "for row, (tokens, tags) in enumerate(samples):",
    "k = min(len(tokens), LIMIT - 2)",
    "out[row, 0] = 1",
    "out[row, 1:k + 1] = tokens[:k]",
    "out[row, k + 1] = 2",
    "mask[row, :k + 2] = 1",
    "return out",
)
ENDED = (
    "out = np.zeros((len(items), LIMIT))",
    "for i, x in enumerate(items):",
    "out[i, : len(x)] = x",
    "out[i, len(x)] = 2",
    "return out",
)


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (ARRAY, "size = min(self.limit, -(-max(len(words) for words, tag in items) // 8) * 8)"),
        (
            TENSOR,
            "longest = min(LIMIT, -(-max(len(x) for x in batch) // 8) * 8)\nout = batch[0].new_zeros(len(batch), longest)",
        ),
        (
            ENTRIES,
            'longest = min(cfg.limit, -(-max(len(s["ids"]) for s in samples) // 8) * 8)\n'
            'rows = [F.pad(s["ids"], (0, longest - len(s["ids"]))) for s in samples]',
        ),
        (MARKED, "width = min(LIMIT, -(-(max(len(tokens) for tokens, tags in samples) + 2) // 8) * 8)"),
        (
            ENDED,
            "longest = min(LIMIT, -(-(max(len(x) for x in items) + 1) // 8) * 8)\nout = np.zeros((len(items), longest))",
        ),
        # What has got its marks before is longer than what the loop took from the batch.
        ((*ENDED[:2], "x = [1, *x]", *ENDED[2:]), ""),
        (("return pad_sequence(batch, batch_first=True)",), ""),
        (("out = np.zeros((len(items), 7))", "return out"), ""),
    ],
)
def test_the_longest_sample_takes_the_place_of_a_fixed_length(lines: tuple[str, ...], paste: str) -> None:
    assert _collated_length.as_long_as_longest(lines, 8) == paste


@pytest.mark.parametrize("length", [5, 6, 7, 8, 14, 15])
def test_marks_around_the_longest_sample_have_room(length: int) -> None:
    """Without their two places the paste of a batch whose longest sample has 7 or 8 items wrote beyond its rows."""
    paste = _collated_length.as_long_as_longest(MARKED, 8)
    body = [paste, *MARKED[1:3], MARKED[3], *(f"    {line}" for line in MARKED[4:9]), MARKED[9]]
    code = "def collate(samples):\n" + "\n".join(f"    {line}" for line in body)
    room: dict[str, Any] = {"np": np, "LIMIT": 64}
    exec(code, room)
    out = room["collate"]([(list(range(3, 3 + length)), None), ([3], None)])
    assert out.shape[1] % 8 == 0
    assert out[0, length + 1] == 2


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (ARRAY, "size = min(self.limit, -(-max(len(words) for words, tag in items) // 8) * 8)"),
        (
            ('return tokenizer.pad(batch, padding="max_length", max_length=512, return_tensors="pt")',),
            'return tokenizer.pad(batch, padding="longest", pad_to_multiple_of=8, return_tensors="pt")',
        ),
        (("batch = self.tokenizer(texts, truncation=True)", "return batch"), way("pad-to-longest").paste),
        (("return default_collate(batch)",), _collated_length._GENERAL.format(rounded_to=8)),
    ],
)
def test_a_tokenizer_is_named_where_the_program_calls_one(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], paste: str
) -> None:
    source = {"/w/data.py": {str(40 + n): text for n, text in enumerate(lines)} | {"90": "tokenizer = Tokenizer(x)"}}
    monkeypatch.setattr(_collated_length, "texts", lambda profile: source)
    monkeypatch.setattr(_collated_length, "_collates", lambda case: ("/w/data.py", 39))
    monkeypatch.setattr(_collated_length, "settings_of", lambda profile: None)
    case = SimpleNamespace(profile=None)
    title, remedy = _collated_length.worded(case, "Padding", way("pad-to-longest"))  # type: ignore[arg-type]
    assert (title, remedy.name, remedy.paste) == ("Padding", "pad-to-longest", paste)
    assert "collate_fn" in remedy.condition


@pytest.mark.parametrize(
    ("length", "longest", "multiple"),
    # by an eighth of the width; finer where the longest sample nearly fills it; rows as long as it tell nothing else
    [
        (512, 275, 64),
        (2048, 700, 64),
        (256, 120, 32),
        (100, 60, 8),
        (200, 90, 8),
        (512, 450, 32),
        (512, 512, 64),
        (64, 33, 8),
    ],
)
def test_lengths_are_rounded_up_by_a_share_of_the_width(length: int, longest: int, multiple: int) -> None:
    assert _padding.multiple(length, longest) == multiple


@pytest.mark.parametrize(
    ("padding", "paste", "why"),
    [
        (
            {"length": 512, "longest": 275},
            "// 64) * 64)",
            "multiples of 64 (8 lengths; those of 8 are 64), because",
        ),
        (
            {"length": 64, "longest": 33},
            "// 8) * 8)",
            "rounded up, because each new length makes its first step slower",
        ),
        (None, "// 8) * 8)", "rounded up, because"),
    ],
)
def test_paste_and_price_round_alike(
    monkeypatch: pytest.MonkeyPatch, padding: dict[str, int] | None, paste: str, why: str
) -> None:
    counts = padding and {"name": "0", "rows": 8, "real": 8 * 30, **padding}
    settings = SimpleNamespace(record={"padding": counts})
    monkeypatch.setattr(_collated_length, "texts", lambda profile: {"/w/data.py": dict(enumerate_from(40, ARRAY))})
    monkeypatch.setattr(_collated_length, "_collates", lambda case: ("/w/data.py", 39))
    monkeypatch.setattr(_collated_length, "settings_of", lambda profile: settings)
    case = SimpleNamespace(profile=None)
    _, remedy = _collated_length.worded(case, "Padding", way("pad-to-longest"))  # type: ignore[arg-type]
    assert remedy.paste.endswith(paste) and why in remedy.condition


@pytest.mark.parametrize(
    ("call", "paste"),
    [
        (
            'out = tokenizer(x, padding="max_length", max_length=256)',
            'out = tokenizer(x, padding="longest", pad_to_multiple_of=32)',
        ),
        (
            'out = tokenizer(x, padding="max_length", pad_to_multiple_of=8)',
            'out = tokenizer(x, padding="longest", pad_to_multiple_of=32)',
        ),
        ("out = tokenizer(x)", 'tokenizer.pad(samples, padding="longest", pad_to_multiple_of=32)'),
        (
            "return default_collate(batch)",
            "batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % 32))  # rounded up, for samples of one dimension",
        ),
    ],
)
def test_other_pastes_round_by_the_width_too(monkeypatch: pytest.MonkeyPatch, call: str, paste: str) -> None:
    settings = SimpleNamespace(
        record={"padding": {"name": "0", "rows": 8, "length": 256, "longest": 120, "real": 8 * 60}}
    )
    monkeypatch.setattr(_collated_length, "texts", lambda profile: {"/w/data.py": dict(enumerate_from(40, (call,)))})
    monkeypatch.setattr(_collated_length, "_collates", lambda case: ("/w/data.py", 39))
    monkeypatch.setattr(_collated_length, "settings_of", lambda profile: settings)
    _, remedy = _collated_length.worded(SimpleNamespace(profile=None), "Padding", way("pad-to-longest"))  # type: ignore[arg-type]
    assert remedy.paste.splitlines()[-1] == paste


def enumerate_from(first: int, lines: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(str(first + number), text) for number, text in enumerate(lines)]
