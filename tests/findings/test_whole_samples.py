"""A worker that makes a whole and uses a part: columns, recordings, pictures; masks and labels that it makes of few numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.test_worker_remedies import Ran, found

ITEM = "Data.__getitem__"


def told(finding: Finding) -> list[str]:
    return [way.name for way in finding.remedies]


IDS, LABELS = 'ids = self.data["input_ids"][i]', 'lab = self.data["labels"][i]'


def test_a_column_is_made_for_one_row(tmp_path: Path) -> None:
    finding = found(tmp_path, (ITEM, 16, 48, IDS), (ITEM, 16, 46, LABELS), (ITEM, 16, 1, "return torch.tensor(ids)"))
    assert told(finding) == ["row-first"] and finding.where["line"] == 10
    assert finding.paste == 'row = self.data[i]\nids = row["input_ids"]\nlab = row["labels"]'
    assert "takes 94 % of a worker's time for a batch, 3.00 ms each time: it makes all of the column" in finding.fix


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        ('x = self.h5["x"][:][i]', 'x = self.h5["x"][i]'),
        (
            "row = self.frame.to_dict('records')[i]",
            "rows = self.frame.to_dict('records')  # once, in __init__\nrow = rows[i]",
        ),
    ],
)
def test_all_rows_are_made_for_one(text: str, paste: str, tmp_path: Path) -> None:
    finding = found(tmp_path, (ITEM, 16, 80, text))
    assert told(finding) == ["row-first"] and finding.paste == paste


def test_rows_that_are_stored_in_large_pieces(tmp_path: Path) -> None:
    """What is read at the line is a chunk, not a column."""
    finding = found(tmp_path, (ITEM, 16, 80, 'x = self.h5["x"][i]'), read_bytes=8 << 20)
    assert told(finding) == ["parsed-once"] and "chunks of one sample" in finding.fix


@pytest.mark.parametrize(
    ("runs", "ms", "text"),
    [
        (160, 80, IDS),  # half a millisecond: a row of what lies in memory, or in a cold file
        (16, 30, IDS),  # less than half of the batch
        (16, 80, 'row = self.data[i]["input_ids"]'),
        (16, 80, 'x = self.data["x"][:, a:b]'),
        (16, 80, "x = self.tokens[i][j]"),
    ],
)
def test_a_row_of_what_is_there(runs: int, ms: float, text: str, tmp_path: Path) -> None:
    assert "row-first" not in told(found(tmp_path, (ITEM, runs, ms, text)))


LOAD: Ran = (ITEM, 16, 40, "wav, sr = torchaudio.load(self.paths[i])")
RESAMPLED: Ran = (ITEM, 16, 50, "wav = torchaudio.transforms.Resample(sr, 16000)(wav)")
MEAN: Ran = (ITEM, 16, 5, "wav = wav.mean(0)")
CUT: Ran = (ITEM, 16, 1, "return wav[s:s + 4 * 16000]")


def test_a_recording_is_read_and_resampled_for_a_piece(tmp_path: Path) -> None:
    finding = found(tmp_path, LOAD, RESAMPLED, MEAN, CUT, read_bytes=4 << 20)
    assert told(finding) == ["part-read"] and "frame_offset=first" in finding.paste
    assert "data.py:20 Data.__getitem__ and 2 other lines take 95 %" in finding.fix
    assert (
        "data.py:40 Data.__getitem__ takes a part of it" in finding.fix and "one Resample for each rate" in finding.fix
    )


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (((ITEM, 16, 80, "y, sr = sf.read(path)"), (ITEM, 16, 1, "y = y[start:start + n]")), "soundfile.read"),
        (((ITEM, 16, 80, "x = np.load(self.files[i])[a:b]"),), 'mmap_mode="r"'),
        (((ITEM, 16, 80, "frames, _, _ = read_video(path)"), (ITEM, 16, 1, "frames = frames[idx]")), "get_frames_at"),
        (((ITEM, 16, 80, "v = nib.load(p).get_fdata()"), (ITEM, 16, 1, "v = v[..., z:z + 16]")), "dataobj"),
    ],
)
def test_functions_that_can_read_a_part(lines: tuple[Ran, ...], paste: str, tmp_path: Path) -> None:
    finding = found(tmp_path, *lines, read_bytes=4 << 20)
    assert told(finding) == ["part-read"] and paste in finding.paste


@pytest.mark.parametrize(
    ("lines", "read_bytes"),
    [
        ((LOAD, RESAMPLED, MEAN), 4 << 20),  # all of it is used
        ((LOAD, RESAMPLED, CUT), 1 << 20),  # no more is read than is handed over
        (((ITEM, 16, 80, "wav, sr = torchaudio.load(p, frame_offset=s, num_frames=n)"), CUT), 4 << 20),
        (((ITEM, 16, 80, 'x = np.load(p, mmap_mode="r")[a:b]'),), 4 << 20),
        ((LOAD, (ITEM, 16, 50, "other = self.rooms[a:b]")), 4 << 20),  # a part of something else
        (((ITEM, 16, 20, LOAD[-1]), CUT), 4 << 20),  # less than half of the batch
    ],
)
def test_what_is_used_as_a_whole_or_read_in_part(lines: tuple[Ran, ...], read_bytes: int, tmp_path: Path) -> None:
    assert "part-read" not in told(found(tmp_path, *lines, read_bytes=read_bytes))


@pytest.mark.parametrize(
    ("runs", "text", "told_so"),
    [
        (2, 'image = Image.open(self.paths[i]).convert("RGB")', True),
        (2, 'image = Image.open(p); image.draft("RGB", (512, 512)); image = image.convert("RGB")', False),
        (16, 'image = Image.open(self.paths[i]).convert("RGB")', False),  # 6 ms each: no large picture
        (2, "x = self.transform(image)", False),
    ],
)
def test_pictures_that_are_decoded_for_little(runs: int, text: str, told_so: bool, tmp_path: Path) -> None:
    finding = found(tmp_path, (ITEM, runs, 96, text), samples=2)
    assert (told(finding) == ["decoded-smaller"]) is told_so


SAME = "same = doc[:, :, None] == doc[:, None, :]"
MASK = 'mask = torch.zeros(4, 1, 8192, 8192).masked_fill(~(same & causal)[:, None], float("-inf"))'


def test_masks_that_are_made_of_few_numbers(tmp_path: Path) -> None:
    finding = found(
        tmp_path,
        ("collate", 1, 10, SAME),
        ("collate", 1, 15, "causal = torch.ones(8192, 8192).tril().bool()"),
        ("collate", 1, 60, MASK),
    )
    assert told(finding) == ["made-from-few"] and finding.where["line"] == 30
    assert "collate and 2 other lines take 85 %" in finding.fix and "flex_attention" in finding.paste


def test_labels_that_are_made_of_classes(tmp_path: Path) -> None:
    text = "y = F.one_hot(lab, 150).permute(0, 3, 1, 2).float()"
    finding = found(tmp_path, ("collate", 1, 80, text))
    assert told(finding) == ["made-from-few"] and finding.paste.startswith("loss = F.cross_entropy(logits, labels)")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (80, "out = torch.zeros(len(rows), 3, 1024, 1024)"),  # filled with data behind
        (40, MASK),  # less than half of the batch
        (80, "x = torch.stack(rows)"),
        (80, "keep = keep[None] == True"),
    ],
)
def test_what_holds_data_is_made_where_they_are(ms: float, text: str, tmp_path: Path) -> None:
    assert "made-from-few" not in told(found(tmp_path, ("collate", 1, ms, text)))


def test_of_a_batch_whose_count_was_stopped_the_counted_part_says_what_takes_long(tmp_path: Path) -> None:
    """5 s are counted of a batch that takes 80: the line holds nearly all of those 5."""
    finding = found(tmp_path, (ITEM, 2, 4_900, IDS), wall_ms=80_000, counted_ms=5_000)
    assert told(finding) == ["row-first"] and "98 % of a worker's time for a batch" in finding.fix
