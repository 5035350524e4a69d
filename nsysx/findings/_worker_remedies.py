"""What can be done about what a loader's workers do for a batch: about files that are read for little, a crop behind what it makes
needless, loops over single items, or the one line that takes most of it, by what that line calls.

More workers only share such work, so it goes before them. Nothing is known where no line, or none of these, has most of the time.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from nsysx import units
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._finding_bounds import LOOPED_FOR_A_SAMPLE, LOOPED_LINE_NS, MOST_SHARE, READ_FOR_LITTLE_TIMES
from nsysx.findings._skipped_samples import skipped_samples
from nsysx.findings._whole_samples import whole_for_a_part
from nsysx.findings._worker_lines import WorkerBatch, WorkerFix, WorkerLine, handed_bytes, place_of, share_of_batch

#: Lines that read or decode what a crop is taken from: they come before it in any case.
_READS = re.compile(r"\b\w*(open|load|read|decode|decompress|frombuffer|fromfile|unpack\w*)\(")
#: A crop by its name, or two slices from a place on: image[top:top + size, left:left + size].
_CROPS = re.compile(r"(?i:crop)\w*\(|\b(\w+)\s*:\s*\1\s*\+[^,:]*,\s*(\w+)\s*:\s*\2\s*\+")
_CROP_FIRST = (
    "transforms = [crop, to_float, flip, colour, normalise]  # the crop first, what works on each pixel behind it"
)
#: Transforms of libraries that read or decode, by their class: they come before a crop in any case.
_LOADS = re.compile(r"Load|Read|Decode|Open")
#: Functions of a data set that call what makes its samples.
_CALLERS = re.compile(r"(^|\.)(__getitems?__|__iter__|__next__|collate\w*)$")
#: A line that draws a random number.
_DRAWS = re.compile(r"\b(random|rng|generator|gen)\.(rand\w*|integers|choice|uniform|normal|sample)\(")
#: A line that computes with arrays of numpy.
_COMPUTES = re.compile(
    r"\b(np|numpy)\.(exp|log\w*|sqrt|square|sin|cos|tan\w*|arctan2|hypot|power|clip|convolve|fft\.\w+)\("
)
_KEEPS = "What is kept must fit into memory; each worker may keep its own."
#: What a line calls, by the remedies of lines of a step: those that serve in a worker, too, in its words where these differ.
_IN_WORKER = {
    "no-sleep": None,
    "tokens-once": way(
        "tokens-once",
        "Tokenize once, before the loop, and keep the numbers",
        "data = data.map(tokenize, batched=True)  # before the loop",
    ),
    "parsed-once": way(
        "parsed-once",
        "Parse this once, store it as arrays and read these by rows: the workers parse it anew for each sample",
        'array = np.load(path, mmap_mode="r")  # written once by np.save; array[row] reads this row alone',
    ),
    "table-once": None,
    "converted-on-gpu": None,
    "arrays-once": way(
        "arrays-once",
        "Make this data one array when it is loaded, and slice that: lists are converted one number at a time",
        "array = np.asarray(rows, np.float32)  # once, when it is loaded\nx = torch.from_numpy(array[start:stop])",
    ),
    "copied-in-place": None,
    "no-process-in-a-step": way(
        "no-process-in-a-step", "Start no process for a sample: call the library, or do it once"
    ),
}
#: A list of arrays is put together without a look at its numbers.
_STACKS = re.compile(r"\bstack\(")


def place_in_worker(case: Case, followed: WorkerBatch) -> dict[str, object]:
    """Return the place of what can be done about a worker's batch, else that of its longest line."""
    by_line = skipped_behind(followed) or (None if followed.again else worker_fix(case, followed))
    return followed.where if by_line is None else by_line.where


def worker_fix(case: Case, followed: WorkerBatch) -> WorkerFix | None:
    """Return what can be done about most of what a worker did for a batch, None where that is not known."""
    return (
        skipped_behind(followed)
        or _read_for_little(case, followed)
        or whole_for_a_part(case, followed)
        or _crop_behind(followed)
        or _crop_composed_last(followed)
        or _loops(followed)
        or _by_text(followed)
        or _more_than_used(followed)
    )


def skipped_behind(followed: WorkerBatch) -> WorkerFix | None:
    """Return that a worker makes samples which a line behind that leaves to other workers or ranks."""
    skipped = skipped_samples(followed)
    if skipped is None:
        return None
    remedy = way("own-samples-first")
    text = (
        f"{remedy.text}: {place_of(skipped.dealing)} leaves samples to the others behind {place_of(skipped.line)}, which takes "
        f"{share_of_batch(skipped.line.ns, followed)} and runs {skipped.made} times for "
        f"{units.several(skipped.samples, 'sample')}; more workers only leave more of them to others"
    )
    return WorkerFix(Fix.by_name(way(remedy.name, text)), skipped.line)


def works_in_lines(followed: WorkerBatch) -> bool:
    """Return whether lines of the program take most of a worker's batch: not what fetches and stacks its samples."""
    return sum(each.ns for each in followed.lines) >= MOST_SHARE * followed.wall_ns


def _read_for_little(case: Case, followed: WorkerBatch) -> WorkerFix | None:
    """Return that far more is read from files than is handed over, at a line that takes most of the time."""
    handed, longest = handed_bytes(case), followed.lines[0]
    if not handed or followed.read_bytes < READ_FOR_LITTLE_TIMES * handed:
        return None
    of_function = [each for each in followed.lines if (each.file, each.function) == (longest.file, longest.function)]
    if sum(each.ns for each in of_function) < MOST_SHARE * followed.wall_ns:
        return None
    archive = any(re.search(r"\bnp\.load\(", each.text) for each in followed.lines) and "][" in longest.text
    why = ": each index into an .npz archive unpacks the whole array" if archive else ""
    text = (
        f"Read only what is used, or keep what is read{why}. {place_of(longest)} takes {share_of_batch(longest.ns, followed)}, which reads "
        f"{units.size(followed.read_bytes)}, and {units.size(handed)} of a batch go to the GPU"
    )
    paste = "arrays = dict(np.load(path))  # once for each file: all of its arrays, unpacked\n" if archive else ""
    paste += 'array = np.load(path, mmap_mode="r")  # of an .npy: array[row] reads this row alone'
    return WorkerFix(Fix.by_name(way("parsed-once", text, paste, _KEEPS)), longest)


def _crop_behind(followed: WorkerBatch) -> WorkerFix | None:
    """Return that samples are cropped behind functions that take most of the time: these work on what is then thrown away."""
    crops = [
        each for each in followed.lines if _CROPS.search(each.text) and (each.file, each.function) in followed.began
    ]
    for crop in crops:
        before = followed.began[: followed.began.index((crop.file, crop.function))]
        wasted = [
            each
            for each in followed.lines
            if (each.file, each.function) in before
            and not _CALLERS.search(each.function)
            and not _READS.search(each.text)
        ]
        ns = sum(each.ns for each in wasted)
        if not _CALLERS.search(crop.function) and ns >= MOST_SHARE * followed.wall_ns:
            fix = _cropped_first(
                place_of(crop), f"functions that take {share_of_batch(ns, followed)}", place_of(wasted[0])
            )
            return WorkerFix(fix, _in_turn(followed) or wasted[0])
    return None


def _cropped_first(crop: str, behind: str, longest: str) -> Fix:
    """Return the remedy, with the place of the crop, what it comes behind, and the longest of that."""
    text = f"Crop first: {crop} comes behind {behind}, {longest} above all, and work on all that it throws away"
    return Fix.by_name(way("cropped-first", text, _CROP_FIRST))


def _crop_composed_last(followed: WorkerBatch) -> WorkerFix | None:
    """Return that a composition of a library crops behind transforms that take most of the time."""
    for i, crop in enumerate(followed.transforms):
        before = [each for each in followed.transforms[:i] if each.composition == crop.composition and each.ns]
        wasted = [each for each in before if not _LOADS.match(each.name)]
        ns = sum(each.ns for each in wasted)
        if not crop.ns or "crop" not in crop.name.lower() or ns < MOST_SHARE * followed.wall_ns:
            continue
        if any("crop" in each.name.lower() for each in before):
            continue  # what the first crop keeps may be little
        longest = max(wasted, key=lambda each: each.ns)
        fix = _cropped_first(crop.place, f"transforms that take {share_of_batch(ns, followed)}", longest.place)
        line = WorkerLine(crop.file, crop.line, "", crop.runs, ns, "") if crop.file else _in_turn(followed)
        return WorkerFix(fix, line or followed.lines[0])
    return None


def _in_turn(followed: WorkerBatch) -> WorkerLine | None:
    """Return the line of a data set that calls one after another for each sample, None where each call has a line of its own."""
    calls = (
        each
        for each in followed.lines
        if _CALLERS.search(each.function) and "(" in each.text and each.runs > followed.samples
    )
    return next(calls, None)


def _loops(followed: WorkerBatch) -> WorkerFix | None:
    """Return that loops of Python over single items take most of the time: lines that run often for each sample, and short."""
    looped = [
        each
        for each in followed.lines
        if each.runs >= LOOPED_FOR_A_SAMPLE * followed.samples and each.ns < LOOPED_LINE_NS * each.runs
    ]
    ns = sum(each.ns for each in looped)
    if ns < MOST_SHARE * followed.wall_ns:
        return None
    longest, name = looped[0], "vectorized"
    beside = f" and {units.several(len(looped) - 1, 'other line')}" if looped[1:] else ""
    text = f"{way(name).text}. {place_of(longest)}{beside} run for single items and take {share_of_batch(ns, followed)}"
    drawn = next((each for each in looped if _DRAWS.search(each.text)), None)
    paste = None
    if drawn is not None:
        text += f"; {place_of(drawn)} draws one number at a time"
        paste = (
            "draws = np.random.randint(low, high, n)  # all of a sample at once; draw again only those that may not be"
        )
    return WorkerFix(Fix.by_name(way(name, text, paste)), longest)


def _by_text(followed: WorkerBatch) -> WorkerFix | None:
    """Return what can be done about the one line that takes most of the time, by what it calls."""
    longest = followed.lines[0]
    if longest.ns < MOST_SHARE * followed.wall_ns:
        return None
    takes = f"{place_of(longest)} takes {share_of_batch(longest.ns, followed)}"
    named = _line_remedies.fix_of(_line_remedies.Seen(longest.text.partition("  #")[0]))
    name = named.ways[0].name if named is not None else ""
    if name in _IN_WORKER and not (name == "arrays-once" and _STACKS.search(longest.text)):
        remedy = _IN_WORKER[name] or way(name)
        return WorkerFix(Fix.by_name(way(name, f"{remedy.text}. {takes}", remedy.paste, remedy.condition)), longest)
    if _COMPUTES.search(longest.text):
        text = f"Compute this on the GPU for the whole batch, from what it is made of. {takes}, with numpy"
        return WorkerFix(Fix.by_name(way("numpy-on-gpu", text)), longest)
    return None


#: Names that a line gives to what a call returns, and a part of a named array from one place to another.
_RETURNED = re.compile(r"^(\w+(?:\s*,\s*\w+)*)\s*=\s*[\w.]+\(")
_PART = r"\b{}\[[^\]]*[A-Za-z_]\w*\s*:|\b{}\[[^\]]*:\s*[A-Za-z_]"


def _more_than_used(followed: WorkerBatch) -> WorkerFix | None:
    """Return that functions which a data set calls for each sample take most of the time, while a part of what they return is used."""
    part = _part_used(followed)
    if part is None:
        return None
    of_function: dict[tuple[str, str], list[WorkerLine]] = {}
    for each in followed.lines:
        if not _CALLERS.search(each.function):
            of_function.setdefault((each.file, each.function), []).append(each)
    took = {key: sum(each.ns for each in theirs) for key, theirs in of_function.items()}
    ns = sum(took.values())
    if ns < MOST_SHARE * followed.wall_ns or max(theirs[0].runs for theirs in of_function.values()) < followed.samples:
        return None
    longest = of_function[max(took, key=lambda key: took[key])][0]
    beside = f" and {units.several(len(of_function) - 1, 'other function')} take" if len(of_function) > 1 else " takes"
    text = f"Make samples cheaper: {place_of(longest)}{beside} {share_of_batch(ns, followed)}"
    text += (
        f", and {PurePath(part.file).name}:{part.line} uses only a part of what they make. Compute it once, before the loop, and take the "
        "part from that, or compute that part alone"
    )
    paste = (
        "features = [features_of(series) for series in data]  # once, in __init__\npart = features[series][start:stop]"
    )
    return WorkerFix(Fix.by_name(way("cheaper-samples", text, paste, _KEEPS)), longest)


def _part_used(followed: WorkerBatch) -> WorkerLine | None:
    """Return the line of a data set that takes a part, from one place to another, of what a call in its function has returned."""
    in_order = sorted((each for each in followed.lines if _CALLERS.search(each.function)), key=lambda each: each.line)
    for i, line in enumerate(in_order):
        returned = _RETURNED.match(line.text)
        for name in re.split(r"\s*,\s*", returned[1]) if returned else ():
            pattern = _PART.format(name, name)
            part = next(
                (
                    each
                    for each in in_order[i + 1 :]
                    if each.function == line.function and re.search(pattern, each.text)
                ),
                None,
            )
            if part is not None:
                return part
    return None
