"""What takes most of a worker's batch is told with what can be done about it: files, crops, loops, or what one line calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import Program, healthy

FILE = "/job/data.py"
FOUR_WORKERS = {"workers": 4, "iterators": 1, "batch_size": 16}
#: A line of a worker: its function, how often it ran for 16 samples, its time (ms of 100), and its text.
Ran = tuple[str, int, float, str]


def starving(program: Program, number: int) -> None:
    """10 ms of loading, a copy of 1 MiB, then kernels."""
    with program.range("data DataLoader"):
        program.host(10_000)
    program.copy(40, pageable=False)
    healthy(program, number)
    program.sync()


def found(
    folder: Path,
    *lines: Ran,
    begins: tuple[str, ...] = (),
    read_bytes: int = 0,
    cores: int = 32,
    copies: bool = True,
    transforms: tuple[tuple[str, int, float, int], ...] = (),
    loader: Mapping[str, object] = FOUR_WORKERS,
    samples: int = 16,
    wall_ms: int = 100,
    counted_ms: int | None = None,
) -> Finding:
    """Return the finding about a loader of four workers, of which one ran these lines for a batch."""
    source = {FILE: {str(10 * i): text for i, (*_, text) in enumerate(lines, 1)}}
    counted = {
        "samples": samples, "wall_ns": wall_ms * 1_000_000, "cpu_ns": wall_ms * 1_000_000, "read_bytes": read_bytes,
        "counted_ns": (wall_ms if counted_ms is None else counted_ms) * 1_000_000,
        "lines": [[FILE, 10 * i, where, runs, round(ms * 1e6)] for i, (where, runs, ms, _) in enumerate(lines, 1)],
        "calls": [[FILE, 1, name, 16] for name in begins],
        "transforms": [
            [part, name, 16, round(ms * 1e6), FILE if line else "", line] for name, part, ms, line in transforms
        ],
    }  # fmt: skip
    settings = {"loaders": [loader], "cpu": {"allowed": cores}}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "worker": counted}
    record |= {"settings": settings, "source": source}
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    body = starving if copies else lambda program, number: (program.host(10), healthy(program, number), None)[-1]
    return Program().steps(body).finding(folder, "NSX106")


@pytest.mark.parametrize(
    ("remedy", "text"),
    [
        ("arrays-once", "x = torch.tensor([s['frames'] for s in samples])"),
        ("arrays-once", "track = np.array([row['xy'] for row in rows], np.float32)"),
        ("parsed-once", "record = json.loads(self.rows[i])"),
        ("parsed-once", "table = pd.read_csv(self.paths[i])"),
        ("table-once", "row = self.frame.iloc[i]"),
        ("tokens-once", "ids = self.tokenizer(self.texts[i])['input_ids']"),
        ("converted-on-gpu", "x = np.asarray(image, np.float32) / 255"),
        ("copied-in-place", "item = copy.deepcopy(self.items[i])"),
        ("numpy-on-gpu", "target[j] = np.exp(-((xs - x) ** 2 + (ys - y) ** 2))"),
    ],
)
def test_the_line_that_takes_most_of_a_batch_leads_by_what_it_calls(remedy: str, text: str, tmp_path: Path) -> None:
    finding = found(tmp_path, ("Data.__getitem__", 16, 20, "a = b[i]"), ("collate", 1, 70, text))
    assert [way.name for way in finding.remedies] == [remedy]
    assert "data.py:20 collate takes 70 % of a worker's time for a batch" in finding.fix
    assert finding.fix.endswith("More workers share that work: num_workers=8 in place of 4")
    assert (finding.where["file"], finding.where["line"]) == (FILE, 20)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (40, "x = torch.tensor([s['frames'] for s in samples])"),  # less than half of the batch
        (70, "x = torch.stack([s['frames'] for s in samples])"),  # tensors already: no number is looked at
        (70, "image = cv2.imread(self.paths[i])"),  # decoding is what workers are for
        (70, "x = self.transform(image)"),
        (70, ""),  # the file was changed since
    ],
)
def test_other_lines_leave_the_advice_as_it_was(ms: float, text: str, tmp_path: Path) -> None:
    finding = found(tmp_path, ("Data.__getitem__", 16, 20, "a = b[i]"), ("collate", 1, ms, text))
    assert [way.name for way in finding.remedies] == ["cheaper-samples"]
    assert "most of their time is at data.py:20 collate" in finding.fix


def test_without_free_cores_no_workers_are_added(tmp_path: Path) -> None:
    assert "num_workers" not in found(tmp_path, ("collate", 1, 70, "x = torch.tensor([r for r in rows])"), cores=4).fix


@pytest.mark.parametrize(("read_bytes", "told"), [(10 << 20, True), (9 << 20, False)])
def test_files_that_are_read_for_little_are_kept_or_read_by_rows(read_bytes: int, told: bool, tmp_path: Path) -> None:
    lines = (
        ("Data.__getitem__", 16, 80, 'x = self.open(i)["windows"][row].copy()'),
        ("Data.open", 16, 2, "self.archives[i] = np.load(path)"),
    )
    finding = found(tmp_path, *lines, read_bytes=read_bytes)
    assert ("each index into an .npz archive unpacks the whole array" in finding.fix) is told
    if told:
        assert "which reads 10.0 MiB, and 1.0 MiB of a batch go to the GPU" in finding.fix
        assert finding.paste.startswith("arrays = dict(np.load(path))")


def test_where_no_copy_was_seen_nothing_is_known_to_be_read_for_little(tmp_path: Path) -> None:
    text = 'x = self.open(i)["windows"][row].copy()'
    assert "unpacks" not in found(tmp_path, ("f", 16, 80, text), read_bytes=1 << 30, copies=False).fix


CROP = "window = np.s_[top:top + self.size, left:left + self.size]"


@pytest.mark.parametrize(
    ("order", "crop", "told"),
    [
        (("ToFloat.__call__", "Colour.__call__", "Chip.__call__"), CROP, True),
        (("ToFloat.__call__", "Colour.__call__", "Chip.__call__"), "return random_crop(image, self.size)", True),
        (("Chip.__call__", "ToFloat.__call__", "Colour.__call__"), CROP, False),  # it comes first already
        (("ToFloat.__call__", "Colour.__call__", "Chip.__call__"), "return image[:, ::-1]", False),  # no crop
    ],
)
def test_a_crop_behind_what_it_makes_needless_goes_first(
    order: tuple[str, ...], crop: str, told: bool, tmp_path: Path
) -> None:
    lines = (
        ("Data.__getitem__", 48, 2, "image = transform(image, rng)"),
        ("ToFloat.__call__", 16, 20, "return image.astype(np.float32) - mean"),
        ("Colour.__call__", 16, 45, "return (image - 0.5) * gain"),
        ("Chip.__call__", 16, 1, crop),
    )
    finding = found(tmp_path, *lines, begins=("Data.__getitem__", *order))
    assert finding.fix.startswith("Crop first: data.py:40 Chip.__call__ comes behind") is told
    assert finding.where["line"] == (10 if told else 30), "where the transforms are called in turn"


FLOAT, COLOUR, CUT = ("ToDtype", 0, 20, 51), ("ColorJitter", 0, 45, 52), ("RandomCrop", 0, 1, 53)


@pytest.mark.parametrize(
    ("transforms", "line"),
    [
        ((FLOAT, COLOUR, CUT), 53),
        ((FLOAT, COLOUR, ("RandomCrop", 0, 1, 0)), 10),  # no line names it: where they are called
        ((CUT, FLOAT, COLOUR), None),  # it comes first already
        ((("CenterCrop", 0, 3, 50), FLOAT, COLOUR, CUT), None),  # behind another crop, which may keep little
        ((FLOAT, COLOUR, ("RandomCrop", 1, 1, 53)), None),  # of another composition
        ((("LoadImage", 0, 60, 50), CUT), None),  # what reads the image stands before it in any case
        ((FLOAT, ("ColorJitter", 0, 29, 52), CUT), None),  # less than half of the batch
        ((FLOAT, COLOUR, ("RandomCrop", 0, 0, 53)), None),  # it was not called
    ],
)
def test_a_crop_that_a_library_applies_last_goes_first(
    transforms: tuple[tuple[str, int, float, int], ...], line: int | None, tmp_path: Path
) -> None:
    finding = found(tmp_path, ("Data.__getitem__", 48, 80, "x = self.transform(image)"), transforms=transforms)
    assert finding.fix.startswith("Crop first: RandomCrop") is (line is not None)
    assert finding.where["line"] == (10 if line is None else line)
    if line is not None:
        assert (
            "takes 65 %" not in finding.fix and "take 65 % of a worker's time for a batch, ColorJitter" in finding.fix
        )


def test_the_longest_transform_of_a_library_is_named(tmp_path: Path) -> None:
    line = ("Data.__getitem__", 16, 80, "x = self.transform(image)")
    assert (
        "Of its transforms ColorJitter (data.py:52) takes longest: 45 %."
        in found(tmp_path, line, transforms=(CUT, COLOUR)).detail
    )
    assert "Of its transforms" not in found(tmp_path, line, transforms=(CUT, FLOAT)).detail


def test_what_reads_the_image_stands_before_the_crop_in_any_case(tmp_path: Path) -> None:
    lines = (
        ("Data.load", 16, 70, "image = decode(read(path))"),
        ("Chip.__call__", 16, 1, CROP),
    )
    finding = found(tmp_path, *lines, begins=("Data.load", "Chip.__call__"))
    assert not finding.fix.startswith("Crop first")


@pytest.mark.parametrize(("runs", "ms", "told"), [(16_000, 30, True), (160, 30, False), (16_000, 20, False)])
def test_loops_over_single_items_are_vectorized(runs: int, ms: float, told: bool, tmp_path: Path) -> None:
    """Two lines that run a thousand times for each sample; ten times, or for less than half of the batch, they are no loop."""
    lines = (
        ("draw", runs, ms, "t = np.random.randint(low, high)"),
        ("Data.__getitem__", runs, ms, "out[k] = draw(1, n)"),
    )
    finding = found(tmp_path, *lines)
    assert ([way.name for way in finding.remedies] == ["vectorized"]) is told
    if told:
        assert "take 60 % of a worker's time for a batch; data.py:10 draw draws one number at a time" in finding.fix
        assert finding.paste.startswith("draws = np.random.randint")


SERIES: tuple[Ran, ...] = (
    ("Bars.__getitem__", 16, 2, "feats = self.features(asset)"),
    ("Bars.__getitem__", 16, 2, "past = feats[:, start:stop]"),
    ("features_of", 16, 30, "ret = prepared(close)"),
    ("rolling", 48, 25, "total = summed(x)"),
)


def test_functions_of_which_a_part_is_used_are_computed_once(tmp_path: Path) -> None:
    """No single line has most of the time, and the functions together have."""
    finding = found(tmp_path, *SERIES)
    assert [way.name for way in finding.remedies] == ["cheaper-samples"]
    assert "data.py:30 features_of and 1 other function take 55 % of a worker's time for a batch" in finding.fix
    assert "data.py:20 uses only a part of what they make" in finding.fix and "[start:stop]" in finding.paste
    assert finding.where["line"] == 30


@pytest.mark.parametrize(
    ("used", "part"),
    [
        ("past = feats[:, start:stop]", True),
        ("past = feats[:start]", True),
        ("past = feats[:, ::2]", False),  # every other one of all of them
        ("past = other[:, start:stop]", False),  # not what was returned
        ("past = feats[index]", False),
    ],
)
def test_a_part_is_told_where_a_line_takes_one(used: str, part: bool, tmp_path: Path) -> None:
    finding = found(tmp_path, SERIES[0], ("Bars.__getitem__", 16, 2, used), *SERIES[2:])
    assert ("uses only a part" in finding.fix) is part


def test_samples_that_take_the_workers_long_are_not_fetched_at_once(tmp_path: Path) -> None:
    """Whole batches at once spare calls and stacking, and these take little where lines of the program take most of the time."""
    loader = {"workers": 4, "iterators": 1, "batch_size": 512, "collate": "default_collate"}
    cheap = [("Bars.__getitem__", 16, 10.0, "return self.x[i]")]
    assert [way.name for way in found(tmp_path, *SERIES, loader=loader).remedies] == ["cheaper-samples"]
    assert found(tmp_path, *cheap, loader=loader).remedies[0].name == "batched-samples"


def test_loops_that_draw_nothing_say_nothing_of_drawing(tmp_path: Path) -> None:
    finding = found(tmp_path, ("Data.__getitem__", 16_000, 90, "total += row[k]"))
    assert finding.fix.startswith("Do this for all items at once") and "draws" not in finding.fix + finding.paste


DEALT = "if i % (self.world * self.n_workers) != self.rank * self.n_workers + self.wid:"


@pytest.mark.parametrize(
    ("makes", "deals", "text", "told"),
    [
        (128, 128, DEALT, True),
        (32, 32, "if index % world_size != rank: continue", True),
        (16, 128, DEALT, False),  # dealt before the samples are made
        (16, 16, DEALT, False),  # one worker
        (128, 128, "if i % self.keep_every:", False),  # a stream that is thinned out on purpose
        (128, 16, DEALT, False),  # several texts for each sample
    ],
)
def test_what_other_workers_hand_out_is_not_made(makes: int, deals: int, text: str, told: bool, tmp_path: Path) -> None:
    made = ("Stream.__iter__", makes, 90.0, "ids = self.tok(text, truncation=True)['input_ids']")
    finding = found(
        tmp_path, made, ("Stream.__iter__", deals, 1.0, text), ("Stream.__iter__", 16, 1.0, "yield torch.tensor(ids)")
    )
    assert finding.fix.startswith("Let each worker of each rank skip what is not its own before") is told
    if told:
        assert f"runs {makes} times for 16 samples" in finding.fix and (
            finding.where["file"],
            finding.where["line"],
        ) == (FILE, 10)
        assert "more workers only leave more" in finding.fix and "islice(stream, own, None, of)" in finding.paste


def test_a_function_that_makes_samples_of_others_is_told_as_that(tmp_path: Path) -> None:
    made = ("encode", 128, 90.0, "return self.tok(text)['input_ids']")
    dealt = ("Stream.__iter__", 128, 1.0, DEALT)
    finding = found(tmp_path, made, dealt, begins=("encode",) * 8)
    assert finding.fix.startswith("Let each worker of each rank skip")
