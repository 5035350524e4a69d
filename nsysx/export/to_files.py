"""``nsysx export``: a report read once, and all outputs written, or none of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from nsysx import outputs, pipeline
from nsysx.export import folded_stacks, parquet
from nsysx.export import perfetto as perfetto_trace
from nsysx.render import json_text


def write(
    file: Path,
    options: pipeline.ReadingOptions,
    *,
    to: Path | None,
    perfetto: Path | None,
    folded: Path | None = None,
    speedscope: Path | None = None,
    force: bool,
    redact: bool,
) -> list[str]:
    """Write ``to``/*.parquet, the trace ``perfetto`` and the flame graphs, and return a line about each. Raises NsysxError."""
    say = options.progress or (lambda _stage: None)
    options = replace(options, whole=True)  # who asks for the rows gets all of them
    job = pipeline.gather_job([file], options)
    given = job.profile
    contents: dict[Path, outputs.Content] = {}
    lines = []
    if perfetto is not None:
        say("making the trace")
        trace = perfetto_trace.trace(given, redact=redact)
        contents[perfetto] = trace.write
        counts = f"{trace.slices:,} slices, {trace.kernels:,} of them kernels, {trace.flows:,} arrows from call to work"
        lines.append(f"wrote {perfetto}: {counts}. Open it at ui.perfetto.dev")
    if folded is not None:
        contents[folded] = folded_stacks.folded(given)
        lines.append(f"wrote {folded}: stacks of lines with their time, for flamegraph.pl and inferno")
    if speedscope is not None:
        contents[speedscope] = folded_stacks.speedscope(given, file.name, redact=redact)
        lines.append(f"wrote {speedscope}: open it at speedscope.app, view Left Heavy")
    if to is not None:
        summary = pipeline.summary_of(job, options)
        say("making the frames")
        parts = parquet.files(given, summary, to, json_text.render(summary))
        contents |= parts
        lines.append(f"wrote {to}: {len(parts)} files, described in {to / parquet.README}")
    say("writing")
    with ExitStack() as stack:
        if to is not None:
            stack.enter_context(outputs.folder_for(to))
        outputs.write_files(contents, force=force)
    return lines
