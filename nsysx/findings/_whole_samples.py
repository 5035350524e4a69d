"""What a worker makes as a whole and uses little of: a column for one row of it, a recording for a piece of it, a picture for a small one.

More workers share such work, and the line that takes little of it stands beside the one that takes the time. What a sample is made of for
nothing is told by both: the time is at the line that makes the whole, and the line (the same, or one behind) takes a part of it. Masks,
one-hot labels and the like, which lines make of few numbers, are large where they are made and belong on the GPU.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx import units
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._finding_bounds import MOST_SHARE, WORKING_SHARE
from nsysx.findings._work_bounds import (
    DECODED_BYTES_PER_NS,
    DECODED_FOR_LITTLE_TIMES,
    LONG_DECODE_NS,
    LONG_ROW_NS,
    PART_READ_TIMES,
    STORED_BYTES_PER_NS,
)
from nsysx.findings._worker_lines import WorkerBatch, WorkerFix, WorkerLine, handed_bytes, place_of, share_of_batch

#: A column by its name, and of that one row; a copy of all rows, or a list of them, and of that one.
_COLUMN = re.compile(
    r"(?P<data>\b[A-Za-z_][\w.]*)\[\s*(?P<column>[\"'][^\"'\[\]]+[\"'])\s*\]\[\s*(?P<row>[A-Za-z_][^\[\]:,]*)\]"
)
_ALL_ROWS = re.compile(r"(?P<all>\[\s*(?::|\.\.\.|\(\s*\))\s*\])\[\s*(?P<row>[A-Za-z_][^\[\]:]*)\]")
_LISTED = re.compile(
    r"(?P<made>\b[A-Za-z_][\w.]*(?:\[[^\[\]]*\])?\.(?:to_dict|to_list|tolist|to_pylist|to_pandas|readlines)\([^()]*\))"
    r"\[\s*(?P<row>[A-Za-z_][^\[\]:]*)\]"
)


class _Reader(NamedTuple):
    """A function that reads a file as a whole, what it is given where it reads a part, and how to read one."""

    reads: re.Pattern[str]
    in_part: re.Pattern[str]
    paste: str
    picks: bool = False  # single frames, by their numbers


def _reader(reads: str, in_part: str, paste: str, *, picks: bool = False) -> _Reader:
    return _Reader(re.compile(reads), re.compile(in_part), paste, picks)


_READERS = (
    _reader(
        r"\btorchaudio\.load\(",
        r"\b(num_frames|frame_offset)\s*=",
        "wav, rate = torchaudio.load(path, frame_offset=first, num_frames=long)  # in samples of the file; its length once, by info()",
    ),
    _reader(
        r"\b(sf|soundfile)\.read\(",
        r"\b(start|stop|frames)\s*=",
        "wav, rate = soundfile.read(path, start=first, frames=long)  # in samples of the file; its length once, by info()",
    ),
    _reader(
        r"\blibrosa\.load\(",
        r"\b(offset|duration)\s*=",
        "wav, rate = librosa.load(path, sr=None, offset=seconds, duration=long)",
    ),
    _reader(
        r"\bread_video\(",
        r"\b(start_pts|end_pts)\s*=",
        "frames = torchcodec.decoders.VideoDecoder(path).get_frames_at(index).data  # those frames alone",
        picks=True,
    ),
    _reader(
        r"\b(np|numpy)\.load\(",
        r"\bmmap_mode\s*=\s*[\"']",
        'array = np.load(path, mmap_mode="r")  # of an .npy: array[first:last] reads this part alone',
    ),
    _reader(
        r"\.get_fdata\(",
        r"\bdataobj\b",
        "part = np.asarray(image.dataobj[..., first:last])  # of an uncompressed .nii; a .nii.gz is unpacked from its begin",
    ),
)
#: What a line assigns.
_ASSIGNED = re.compile(r"^\s*(\w+(?:\s*,\s*\w+)*)\s*=(?!=)\s*(.*)$")
#: A part from one place to another, of which one is a name, behind what is called or named.
_PART = r"(?:\[[^\[\]]*[A-Za-z_]\w*(?:\([^()]*\))?\s*:[^\[\]]*\]|\[[^\[\]]*:\s*[A-Za-z_][^\[\]]*\])"
_RESAMPLES = re.compile(r"\bResample\([^()]*\)\s*\(")
#: A picture that is decoded as a whole, and what decodes it at the size that is used.
_DECODES = re.compile(
    r"\bImage\.open\(.*\.(convert|load|resize)\(|\bimread\(|\b(imdecode|decode_jpeg|decode_image|read_image)\("
)
_SMALLER = re.compile(r"\bdraft\(|IMREAD_REDUCED|\bthumbnail\(")
#: What is large and made of few numbers: masks and labels of which each value is a comparison or a constant.
_MADE_OF_FEW = re.compile(
    r"\b(one_hot|masked_fill_?|tril|triu|eye)\(|\[[^\[\]]*\bNone\b[^\[\]]*\]\s*(==|!=|<=?|>=?)\s*.*\bNone\b"
)
_LABELS = re.compile(r"\bone_hot\(")


def whole_for_a_part(case: Case, followed: WorkerBatch) -> WorkerFix | None:
    """Return what a worker makes as a whole and uses a part of, None where that is not known to be most of its batch."""
    return (
        _row_of_a_column(followed)
        or _part_of_a_file(case, followed)
        or _decoded_for_little(case, followed)
        or _made_of_few(followed)
    )


def _row_of_a_column(followed: WorkerBatch) -> WorkerFix | None:
    """Return that lines make a column, or a list of all rows, and take one row of it.

    A line that indexes what lies in memory takes no time. What is read from a file at the line is stored in pieces larger than a row.
    """
    seen = [
        (each, matched)
        for each in followed.lines
        if (matched := _ALL_ROWS.search(each.text) or _LISTED.search(each.text) or _COLUMN.search(each.text))
        and each.ns >= LONG_ROW_NS * each.runs
    ]
    ns = sum(each.ns for each, _ in seen)
    if ns < MOST_SHARE * followed.wall_ns or followed.busy < WORKING_SHARE:
        return None
    longest, matched = seen[0]
    takes = f"{place_of(longest)} takes {share_of_batch(ns, followed)}, {units.duration(longest.ns / longest.runs)} each time"
    name = way("row-first")
    if matched.re is _LISTED:
        text = f"Make this list once, and take the row from that. {takes}: it makes all rows, and one is used"
        paste = f"rows = {matched['made']}  # once, in __init__\nrow = rows[{matched['row']}]"
        return WorkerFix(Fix.by_name(way("row-first", text, paste)), longest)
    if followed.read_bytes >= STORED_BYTES_PER_NS * ns and matched.re is _COLUMN:
        text = (
            f"Store this so that one row can be read alone: chunks of one sample and no compression, or an .npy. {takes}, and reads "
            f"{units.size(followed.read_bytes)} of files"
        )
        paste = 'array = np.load(path, mmap_mode="r")  # written once by np.save; array[row] reads this row alone'
        return WorkerFix(Fix.by_name(way("parsed-once", text, paste, "")), longest)
    if matched.re is _ALL_ROWS:
        paste = "\n".join(each.text.strip().replace(m["all"], "", 1) for each, m in seen if m.re is _ALL_ROWS)
        text = f"{name.text}. {takes}: it makes a copy of all rows, and one is used"
        return WorkerFix(Fix.by_name(way("row-first", text, paste, "")), longest)
    data, row = matched["data"], matched["row"].strip()
    theirs = [(each, m) for each, m in seen if m.re is _COLUMN and (m["data"], m["row"].strip()) == (data, row)]
    taken = (each.text.strip().replace(m[0], f"row[{m['column']}]") for each, m in theirs)
    text = f"{name.text}. {takes}: it makes all of the column, and one row of it is used"
    paste = "\n".join((f"row = {data}[{row}]", *dict.fromkeys(taken)))
    return WorkerFix(Fix.by_name(way("row-first", text, paste)), longest)


def _part_of_a_file(case: Case, followed: WorkerBatch) -> WorkerFix | None:
    """Return that files are read, and worked on, as a whole by functions that can read a part, of which a line takes a part."""
    handed = handed_bytes(case)
    if not handed or 0 < followed.read_bytes < PART_READ_TIMES * handed:
        return None
    for reading in followed.lines:
        reader = next((each for each in _READERS if each.reads.search(reading.text)), None)
        if reader is None or reader.in_part.search(reading.text):
            continue
        part, makers = _taken_of(reading, followed, reader)
        ns = sum(each.ns for each in makers)
        if part is None or ns < MOST_SHARE * followed.wall_ns:
            continue
        longest = max(makers, key=lambda each: each.ns)
        beside = f" and {units.several(len(makers) - 1, 'other line')} take" if len(makers) > 1 else " takes"
        where = "the same line" if part == reading else place_of(part)
        text = (
            f"{way('part-read').text}. {place_of(longest)}{beside} {share_of_batch(ns, followed)}, which read "
            f"{place_of(reading)} as a whole, and {where} takes a part of it"
        )
        if any(_RESAMPLES.search(each.text) for each in makers):
            text += ". Keep one Resample for each rate, too: each makes its filter anew"
        return WorkerFix(Fix.by_name(way("part-read", text, reader.paste)), longest)
    return None


def _taken_of(
    reading: WorkerLine, followed: WorkerBatch, reader: _Reader
) -> tuple[WorkerLine | None, list[WorkerLine]]:
    """Return the line that takes a part of what a line reads, None for none, and the lines before it that make it of the file."""
    called = reader.reads.search(reading.text)
    if called and re.search(rf"\)(?:\[\d+\])?{_PART}", reading.text[called.start() :]):
        return reading, [reading]
    assigned = _ASSIGNED.match(reading.text)
    names = re.split(r"\s*,\s*", assigned[1]) if assigned else []
    makers = [reading]
    behind = sorted(
        (each for each in followed.lines if (each.file, each.function) == (reading.file, reading.function)),
        key=lambda each: each.line,
    )
    for line in (each for each in behind if each.line > reading.line):
        of_them = "|".join(map(re.escape, names)) or "(?!)"
        picked = r"\[[A-Za-z_]\w*\]" if reader.picks else "(?!)"
        if re.search(rf"\b(?:{of_them})(?:{_PART}|{picked})", line.text):
            return line, makers
        made = _ASSIGNED.match(line.text)
        if made and re.search(rf"\b(?:{of_them})\b", made[2]) and "(" in made[2]:
            names += re.split(r"\s*,\s*", made[1])
            makers.append(line)
    return None, makers


def _decoded_for_little(case: Case, followed: WorkerBatch) -> WorkerFix | None:
    """Return that pictures are decoded which are many times as large as what is handed over of them, by the time that takes."""
    longest = followed.lines[0]
    each_bytes = handed_bytes(case) / followed.samples
    one_by_one = (
        longest.runs >= followed.samples and _DECODES.search(longest.text) and not _SMALLER.search(longest.text)
    )
    if not one_by_one or not each_bytes:
        return None
    each_ns = longest.ns / longest.runs
    little = DECODED_BYTES_PER_NS * each_ns >= DECODED_FOR_LITTLE_TIMES * each_bytes
    if (
        longest.ns < MOST_SHARE * followed.wall_ns
        or each_ns < LONG_DECODE_NS
        or not little
        or followed.busy < WORKING_SHARE
    ):
        return None
    text = (
        f"{way('decoded-smaller').text}. {place_of(longest)} takes {share_of_batch(longest.ns, followed)}, {units.duration(each_ns)} for "
        f"a picture of which {units.size(each_bytes)} go to the GPU"
    )
    return WorkerFix(Fix.by_name(way("decoded-smaller", text)), longest)


def _made_of_few(followed: WorkerBatch) -> WorkerFix | None:
    """Return that masks or labels take most of the time, of which each value is told by few numbers of the batch."""
    made = [each for each in followed.lines if _MADE_OF_FEW.search(each.text)]
    ns = sum(each.ns for each in made)
    if ns < MOST_SHARE * followed.wall_ns:
        return None
    longest = made[0]
    beside = f" and {units.several(len(made) - 1, 'other line')} take" if made[1:] else " takes"
    remedy = way("made-from-few")
    paste = remedy.paste
    if any(_LABELS.search(each.text) for each in made):
        paste = "loss = F.cross_entropy(logits, labels)  # numbers of classes, as they are: no row of zeros and a one for each"
    text = f"{remedy.text}. {place_of(longest)}{beside} {share_of_batch(ns, followed)}"
    return WorkerFix(Fix.by_name(way("made-from-few", text, paste)), longest)
