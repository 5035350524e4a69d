"""Time by line: what each line of the program costs the host and the GPU, from the X-ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.code_lines import CodeLines
from nsysx.events.lacking_nvtx import INSTALL_NVTX, LACKS_NVTX, lacks_nvtx
from nsysx.events.line_shares import shares
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "lines"
TITLE = "Time by line"
#: The names for what no line is known for, and for idle time that is the device's own.
NOT_KNOWN, OF_DEVICE = "(not known)", "(the device's own)"


class CodeLineRow(TypedDict):
    """One line of the program."""

    file: Annotated[
        str | None, Of("file of the program's own code; null for time that no line is known for", label="Python line")
    ]
    line: Annotated[int | None, Of("its line")]
    text: Annotated[
        str | None, Of("what stands there, null where it was not recorded; of time without a line why that has none")
    ]
    function: Annotated[
        str, Of(f"its function; {NOT_KNOWN} where no line is known, {OF_DEVICE} for idle time that no line caused")
    ]
    idle_caused_ns: Annotated[
        int,
        Of(
            "idle time of the shown device while the thread that kept it waiting was at this line, and until what it launches began; "
            "over all rows the device's idle time",
            "ns",
            sums="scope",
            label="GPU idle caused",
        ),
    ]
    gpu_self_ns: Annotated[
        int,
        Of(
            "time of the GPU ops that it launches, backward included; over all rows that of all GPU work",
            "ns",
            sums="scope",
            label="GPU time",
        ),
    ]
    gpu_total_ns: Annotated[
        int, Of("the same with what it calls", "ns", sums="scope", label="GPU time with what it calls")
    ]
    host_self_ns: Annotated[
        int,
        Of(
            "time of the thread that drives the steps, at this line itself; over all rows the step on the CPU",
            "ns",
            sums="scope",
            label="host time",
        ),
    ]
    host_total_ns: Annotated[
        int, Of("the same with what it calls", "ns", sums="scope", label="host time with what it calls")
    ]
    launches: Annotated[int, Of("launches of kernels and CUDA graphs", sums="scope")]
    waits: Annotated[int, Of("calls that can block", sums="scope")]
    wait_ns: Annotated[int, Of("their time", "ns", sums="scope", label="time in waits")]
    copies: Annotated[int, Of("copies", sums="scope")]
    copy_bytes: Annotated[int, Of("their size", "bytes", sums="scope", label="copied")]


COLUMNS = columns_of(CodeLineRow)
ROWS: TableOf[CodeLineRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=35,
    group="where",
    intro=(
        "What each line of the program costs. An X-ray of a few steps noted the lines; the times are those of the other steps."
    ),
    first=names(
        "file text idle_caused_ns gpu_self_ns host_self_ns launches wait_ns copies gpu_total_ns host_total_ns function"
    ),
    bar="idle_caused_ns",
    # What a step has of the device: in one that the GPU limits few lines leave it idle.
    order=names("idle_caused_ns gpu_self_ns"),
    unknown="(no line)",
    rows=40,
)

_SELF = ("host_self_ns", "gpu_self_ns", "idle_caused_ns", "launches", "waits", "wait_ns", "copies", "copy_bytes")
_TOTAL = {"host_total_ns": "host_self_ns", "gpu_total_ns": "gpu_self_ns"}


def lines_of_calls(profile: Profile) -> CodeLines:
    """Return the lines of the calls. Errors: NotRecorded."""
    lines = profile.code()
    if lines is None and lacks_nvtx(profile.trace.capture.probe):
        raise NotRecorded(f"no line of Python was noted: {LACKS_NVTX}", f"{INSTALL_NVTX} && nsysx run")
    if lines is None:
        raise NotRecorded("no line of Python was noted", "nsysx run")
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    return lines


def by_stack(profile: Profile, lines: CodeLines) -> pl.DataFrame:
    """Return stack (-1: not known) and what each did itself in the steady steps: the columns of ``_SELF``."""
    divided = profile.once(shares)
    calls, ops = profile.steady_calls, profile.steady_ops
    blocking = calls["call", "start_ns", "end_ns"].join(profile.waits.select("call"), on="call", how="semi")
    copy = (ops["op_kind"] == "memcpy").to_numpy()
    op, launch = ops["op"].to_numpy(), calls["call"].filter(calls["kind"].is_in(Call.LAUNCHES)).to_numpy()
    size = len(lines.place) + 1

    def summed(stack: I64, values: I64 | int) -> I64:
        return lookup.totals(stack, np.broadcast_to(np.asarray(values, np.int64), len(stack)), size)  # -1 is the last

    waits = lines.call[blocking["call"].to_numpy()]
    columns = {
        "host_self_ns": summed(divided.host["stack"].to_numpy(), divided.host["ns"].to_numpy()),
        "gpu_self_ns": summed(lines.op[op], (ops["end_ns"] - ops["start_ns"]).to_numpy()),
        "idle_caused_ns": summed(divided.idle["stack"].to_numpy(), divided.idle["ns"].to_numpy()),
        "launches": summed(lines.call[launch], 1),
        "waits": summed(waits, 1),
        "wait_ns": summed(waits, (blocking["end_ns"] - blocking["start_ns"]).to_numpy()),
        "copies": summed(lines.op[op[copy]], 1),
        "copy_bytes": summed(lines.op[op[copy]], ops["bytes"].fill_null(0).to_numpy()[copy]),
    }
    rows = pl.DataFrame({"stack": np.append(np.arange(size - 1), -1), **columns})
    return rows.filter(pl.any_horizontal(pl.col(_SELF) != 0))


def _totals(lines: CodeLines, rows: pl.DataFrame) -> pl.DataFrame:
    """Return place and the columns of ``_TOTAL``: what all stacks with the place anywhere in them did, each counted once."""
    stack = rows["stack"].to_numpy()
    row = np.flatnonzero(stack >= 0)
    pairs, above = [np.stack((row, lines.places_of(stack[row])), axis=1)], stack[row]
    own_stack, parent = np.append(lines.own, -1), np.append(lines.parent, -1)
    while len(row):
        above = own_stack[above]
        row, above = row[above >= 0], above[above >= 0]
        pairs.append(np.stack((row, lines.place[above]), axis=1))
        above = parent[above]
    distinct = np.unique(np.concatenate(pairs), axis=0)
    sums = {total: rows[alone].to_numpy()[distinct[:, 0]] for total, alone in _TOTAL.items()}
    return pl.DataFrame({"place": distinct[:, 1], **sums}).group_by("place").agg(pl.col(*_TOTAL).sum())


def texts(profile: Profile) -> Mapping[str, Any]:
    """Return file -> line (text) -> what stands there, as the probe read it; empty where it did not."""
    return _noted_texts(profile, "source")


def texts_of_ranks(profile: Profile) -> Mapping[str, Any]:
    """Return likewise the lines that may take a rank's share of something, whether they run in steps or before."""
    return _noted_texts(profile, "of_ranks")


def orders_of_ranks(profile: Profile) -> list[Mapping[str, Any]]:
    """Return where the rank in a seed decides an order, or a size that is ``drawn``: file and lines of seed and order, and whether its
    function ``runs`` in steps.
    """
    noted = [row for record in profile.trace.run.get("probe") or () for row in record.get("orders_of_ranks") or ()]
    return [row for row in noted if isinstance(row, dict) and isinstance(row.get("seed"), int)]


def options_of_layers(profile: Profile, file: str, line: int) -> list[Mapping[str, Any]]:
    """Return by which options of its layer a line runs, one row for each statement that makes such a layer: ``made_file``, ``made_line``
    and ``text``, and ``changed``, that statement with the ``option`` the other way round, so that the line does not run.
    """
    noted = [row for record in profile.trace.run.get("probe") or () for row in record.get("options_of_layers") or ()]
    fields = {"option": str, "made_file": str, "made_line": int, "text": str, "changed": str}
    rows = [row for row in noted if isinstance(row, dict) and (row.get("file"), row.get("line")) == (file, line)]
    typed = [row for row in rows if all(isinstance(row.get(name), kind) for name, kind in fields.items())]
    return list({(row["made_file"], row["made_line"], row["option"]): row for row in typed}.values())


def _noted_texts(profile: Profile, name: str) -> Mapping[str, Any]:
    run = profile.trace.run
    merged: dict[str, Any] = {}
    for record in (run, *(run.get("probe") or ())):
        source = record.get(name) if isinstance(record, dict) else None
        for file, lines in source.items() if isinstance(source, dict) else ():
            if isinstance(lines, dict):  # each rank notes the lines of a file that it runs
                merged[file] = {**merged.get(file, {}), **lines}
    return merged


def text_of(source: Mapping[str, Any], file: str | None, line: int | None) -> str | None:
    """Return what stands at a line, None where that was not recorded."""
    text = source.get(file or "", {}).get(str(line))
    return text.strip() if isinstance(text, str) else None


def code_of_ranks(profile: Profile, file: str, line: int) -> str:
    """Return what stands at a line, whether it runs in steps or takes a rank's share before, without a remark behind it; "" for others."""
    text = text_of(texts(profile), file, line) or text_of(texts_of_ranks(profile), file, line) or ""
    return text.partition("  #")[0]


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per line, that which costs the GPU's timeline most first, and the rest."""
    lines = lines_of_calls(profile)
    stacked = by_stack(profile, lines)
    of_stack = lines.places_of(stacked["stack"].to_numpy())
    rows = stacked.with_columns(place=pl.Series(of_stack)).group_by("place").agg(pl.col(_SELF).sum())
    rows = rows.join(_totals(lines, stacked), on="place", how="full", coalesce=True).with_columns(
        pl.col(_SELF).fill_null(0)
    )
    rows = rows.with_columns(
        pl.when(pl.col("place") < 0).then(alone).otherwise(pl.col(total).fill_null(0)).alias(total)
        for total, alone in _TOTAL.items()
    )
    rows = rows.with_columns(
        lookup.at(lines.places[c], rows["place"].to_numpy()).alias(c) for c in ("file", "line", "function")
    )
    rows = rows.with_columns(pl.col("function").fill_null(NOT_KNOWN))
    if device := profile.once(shares).own_idle_ns:
        rest = dict.fromkeys((*_SELF, *_TOTAL), 0) | {"function": OF_DEVICE, "idle_caused_ns": device}
        rows = pl.concat(
            [rows, pl.DataFrame([rest], schema_overrides=rows.select(*_SELF, *_TOTAL, "function").schema)],
            how="diagonal",
        )
    source = texts(profile)
    places = rows["file", "line", "function"].iter_rows()
    text = [text_of(source, file, line) if file else function for file, line, function in places]
    rows = rows.with_columns(
        pl.Series("text", text, dtype=pl.String), _cost=pl.col("idle_caused_ns") + pl.col("gpu_self_ns")
    )
    order = ["_cost", "host_self_ns", "host_total_ns", "gpu_total_ns", "file", "line", "function"]
    rows = rows.sort(pl.col("file").is_null(), *order, descending=[False] + [True] * 4 + [False] * 3, nulls_last=True)
    return rows.select(c.name for c in COLUMNS)
