"""The length that a program's own collate function pads to, in its own lines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsysx.findings import _collated_length
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
        (("return pad_sequence(batch, batch_first=True)",), ""),
        (("out = np.zeros((len(items), 7))", "return out"), ""),
    ],
)
def test_the_longest_sample_takes_the_place_of_a_fixed_length(lines: tuple[str, ...], paste: str) -> None:
    assert _collated_length.as_long_as_longest(lines, 8) == paste


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (ARRAY, "size = min(self.limit, -(-max(len(words) for words, tag in items) // 8) * 8)"),
        (
            ('return tokenizer.pad(batch, padding="max_length", max_length=512, return_tensors="pt")',),
            'return tokenizer.pad(batch, padding="longest", pad_to_multiple_of=8, return_tensors="pt")',
        ),
        (("batch = self.tokenizer(texts, truncation=True)", "return batch"), way("pad-to-longest").paste),
        (("return default_collate(batch)",), _collated_length._GENERAL),
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


@pytest.mark.parametrize(("padding", "multiple"), [({"longest": 980}, 64), ({"longest": 90}, 8), ({}, 8), (None, 8)])
def test_lengths_are_rounded_up_by_a_small_share(
    monkeypatch: pytest.MonkeyPatch, padding: object, multiple: int
) -> None:
    monkeypatch.setattr(_collated_length, "settings_of", lambda profile: SimpleNamespace(record={"padding": padding}))
    assert _collated_length._multiple(SimpleNamespace(profile=None)) == multiple  # type: ignore[arg-type]
