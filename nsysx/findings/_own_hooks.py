"""Communication hooks of DDP that the program defines: whether one compresses the gradients that it sends."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.events.frozen_parameters import bucket_bytes
from nsysx.events.message_calls import with_messages
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._costly_jobs import ddp
from nsysx.findings._finding_bounds import COMPRESSED_SHARE


class OwnCompression(NamedTuple):
    """The ``calls`` of such a hook in the steady steps, its ``messages`` (ops), and how many buckets of all steps it reduces."""

    calls: pl.DataFrame
    messages: frozenset[int]
    buckets: int


def own_compression(profile: Profile) -> OwnCompression | None:
    """Return what a hook that the program defines does, where it sends far fewer bytes than the buckets hold; None without one.

    Its lines are those of its function and of functions in it, with what these call.
    """
    settings, code = settings_of(profile), profile.code()
    wrapper = (None if settings is None else ddp(settings)) or {}
    hook, whole = str(wrapper.get("hook") or ""), sum(bucket_bytes(wrapper))
    if code is None or not hook or not whole or not profile.scope.steps:
        return None
    functions = code.places["function"].to_list()
    inside = frozenset(n for n, name in enumerate(functions) if name and f"{name}.".startswith(f"{hook}."))
    steady = profile.steady_calls
    calls = steady.filter(pl.Series(code.passing(code.call[steady["call"].to_numpy()], inside), dtype=pl.Boolean))
    made = calls["call"].implode()
    sent = profile.once(with_messages).filter(pl.col("call").is_in(made))
    if not sent.height or sent["bytes"].null_count():
        return None
    times = max((settings.number("reducing") if settings is not None else 0) or 1, 1)
    if profile.scope.per_step(int(sent["bytes"].sum())) > COMPRESSED_SHARE * whole * times:
        return None
    buckets = round(len(bucket_bytes(wrapper)) * times * profile.scope.steps)
    return OwnCompression(calls, frozenset(sent["op"].to_list()), buckets)
