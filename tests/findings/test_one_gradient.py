"""NSX110: gradients of one parameter, which DDP cannot divide into buckets."""

from __future__ import annotations

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._costly_jobs import one_gradient

MIB = 1 << 20


@pytest.mark.parametrize(
    ("buckets", "cap", "alone"),
    [
        (str(366 * MIB), 25 * MIB, True),
        (str(30 * MIB), 25 * MIB, False),  # several parameters may be in it
        (str(366 * MIB), 1024 * MIB, False),  # so large by its option
        (f"{366 * MIB}, {25 * MIB}", 25 * MIB, False),
        ("", 25 * MIB, False),
        (str(366 * MIB), None, False),
    ],
)
def test_one_parameter_has_what_a_bucket_holds_beyond_its_size(buckets: str, cap: int | None, alone: bool) -> None:
    wrapper = {"kind": "DDP", "bucket_bytes": buckets, "bucket_cap_bytes": cap}
    assert bool(one_gradient(RecordedSettings({"wrappers": [wrapper]}))) == alone
    assert not one_gradient(RecordedSettings({"wrappers": []})) and not one_gradient(None)
