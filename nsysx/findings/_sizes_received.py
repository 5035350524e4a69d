"""Lines that receive a few numbers before each message, such as its shape, which the host has to read before it can post the message."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings._finding_bounds import MOST_METRIC_BYTES, SIZES_BYTES
from nsysx.reading import nccl_notes

RECEIVES = re.compile(r"\bi?recv\w*\s*\(")


def receiving_sizes(profile: Profile, code: CodeLines, line_rows: Sequence[int]) -> frozenset[int]:
    """Return those lines (rows of the places) that send or receive no more than a few numbers, by what NCCL noted, such as a shape."""
    if not line_rows:
        return frozenset()
    comm = profile.steady_ops.filter(profile.steady_ops["cls"] == DeviceActivity.COMM.value)
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    size = np.array([m.bytes or MOST_METRIC_BYTES for m in nccl_notes.messages(profile.trace, comm, members)])
    place_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    return frozenset(n for n in line_rows if (size[place_of_op == n] <= SIZES_BYTES).all())
