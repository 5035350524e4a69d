"""Collectives that send again what was sent before in the same step: layers that are given one tensor and each gather it.

An operator of an X-ray step names what made each tensor that it is given, so that two collectives send one tensor if both name the same
result, or what only hands that on in the same way, and nothing writes into it in between. Where a function of autograd sends and does
nothing else, its node in backward sends the gradient back, again for each.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import are_nodes
from nsysx.events.collective_operators import CollectiveOperator, collective_operators
from nsysx.events.flow_messages import place_of_sent
from nsysx.events.message_calls import with_messages
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import SIZES, OperatorFlow, flows_of, in_place, is_view, outermost_rows, results_given
from nsysx.events.operator_names import writes_lists
from nsysx.events.profile import Profile

#: Collectives that write into what they send: a second one sends something else.
_OVERWRITE = re.compile(r"^(c10d::(allreduce|broadcast|reduce)_|_c10d_functional::(all_reduce|broadcast)_)$")
#: Those that only one rank sends, or to one rank: each rank may be that one in turn, which no size tells.
_OF_ONE_RANK = re.compile(r"broadcast|::(reduce_|send|recv)$")
#: Operators that hand on the numbers that they are given, in another shape, place or type.
_HANDS_ON = re.compile(
    r"^aten::(_?(unsafe_)?view(_as)?|reshape(_as)?|_reshape_alias|(un)?flatten|(un)?squeeze|transpose|permute|movedim|numpy_T|[tT]|mT|mH|"
    r"detach|alias|to|_to_copy|contiguous|clone|type_as)$"
)
#: Of these, those after which it lies elsewhere, and those that may change nothing at all.
_COPIES, _SAME = re.compile(r"^aten::(clone|_to_copy)$"), re.compile(r"^aten::(detach|alias|contiguous|to)$")
#: What a function of autograd that only sends may run besides: it makes a tensor to receive into, and puts together what came.
_BESIDE = re.compile(
    r"^(aten::(as_strided|(new_)?empty\w*|copy_|chunk|(unsafe_)?(tensor_)?split\w*|narrow|slice|select|unbind|cat|concat\w*|stack|"
    r"constant_pad_nd|pad|resize_|set_)|_?c10d\w*::\w+|[^:]+)$"
)
#: Functions of autograd that Python defines; torch's own have the names of libraries. Within its operators that have a gradient of Python's
#: there is one with such a name, and its node.
_FUNCTIONS, _TORCHS_OWN = r"^[^:]*[^:\d]$", "GeneratedBackwardFor_"


class SpanOfThread(NamedTuple):
    """A time on a thread."""

    thread: int
    begin_ns: int
    end_ns: int


class SendingLayer(NamedTuple):
    """A collective of an X-ray step: the program asks for it at an instant, in a ``module`` (its path, "" for none).

    ``function``: the function of autograd that does nothing else, "" without one. ``spans``: when that, or the collective, runs, and when
    the function's node does in backward.
    """

    start_ns: int
    module: str
    function: str
    spans: tuple[SpanOfThread, ...]


class SentTensor(NamedTuple):
    """Collectives (operator ``name``) on a ``thread`` that all send one tensor, of this ``size``.

    ``whole``: its size over all ranks, () where their function does not know it.
    """

    name: str
    thread: int
    size: Size
    whole: Size
    members: tuple[SendingLayer, ...]


def tensors_sent_again(profile: Profile) -> list[SentTensor]:
    """Return the tensors that the shown process sends several times in a step, of all its X-ray steps; nothing where no X-ray says what
    made what.
    """
    return profile.once(_find)


def _find(profile: Profile) -> list[SentTensor]:
    if profile.trace.nccl is None or profile.ranges.repeats is None:
        return []
    tensors = list[SentTensor]()
    for flow in flows_of(profile):
        tensors += _StepSends(flow, profile).tensors()
        if not tensors:
            break
    return tensors


class _StepSends:
    """The collectives of the flow of one X-ray step, and who makes what they send."""

    def __init__(self, flow: OperatorFlow, profile: Profile) -> None:
        self.flow = flow
        self._profile = profile
        self._every = collective_operators(flow, profile)

    def tensors(self) -> Iterator[SentTensor]:
        """Yield the tensors that are sent several times."""
        same: dict[tuple[int, tuple[object, ...]], list[CollectiveOperator]] = defaultdict(list)
        for each in self._collectives():
            source, ranks = self._source(each), self._ranks(each)
            if source is not None and ranks is not None:
                made, *path = source
                same[made, (*path, each.name, _size(each), ranks, self._phase(each.start_ns))].append(each)
        for (made, _), theirs in same.items():
            for unchanged in self._without_writes(made, theirs) if len(theirs) > 1 else ():
                yield from self._of_functions(unchanged)

    def _collectives(self) -> list[CollectiveOperator]:
        every = [each for each in self._every if place_of_sent(each.name) is not None]
        start, end = (np.array([each[n] for each in every], np.int64) for n in (0, 1))
        outer = (every[row] for row in outermost_rows(start, end))
        return [each for each in outer if not _OF_ONE_RANK.search(each.name) and _size(each)]

    def _source(self, each: CollectiveOperator) -> tuple[int, int, tuple[tuple[str, str], ...]] | None:
        """Return what tells the tensor that is sent from others: what made it, and what hands it on; None for what has no name."""
        flow, argument = self.flow, place_of_sent(each.name) or 0
        if len(each.given) <= argument or each.given[argument] < 0:
            return None
        number, which, path = each.given[argument], each.which[argument], list[tuple[str, str]]()
        row = flow.row_of.get(number)
        while row is not None and _HANDS_ON.match(flow.names[row]) and flow.made[row] and flow.made[row][0] >= 0:
            path.append((flow.names[row], flow.size[row]))
            number, which = flow.made[row][0], flow.which[row][0] if flow.which else 0
            row = flow.row_of.get(number)
        if _OVERWRITE.match(each.name) and not any(_COPIES.match(name) for name, _ in path):
            return None
        return number, which, tuple((name, size) for name, size in path if not _SAME.match(name))

    def _ranks(self, each: CollectiveOperator) -> str | None:
        """Return the communicator of a collective; None where no note says among whom it is, or it makes more than one message."""
        starts, communicators = self._messages
        first, last = bisect_left(starts, each.start_ns), bisect_right(starts, each.end_ns)
        return (communicators[first] or None) if last - first == 1 else None

    @cached_property
    def _messages(self) -> tuple[list[int], list[str | None]]:
        sent = self._profile.once(with_messages)
        sent = sent.filter(sent["thread"] == self.flow.thread).sort("call_start_ns")
        return sent["call_start_ns"].to_list(), sent["communicator"].to_list()

    def _phase(self, t: int) -> int:
        """Return when the phase began that is at work at an instant: what is gathered in forward may be freed before backward."""
        begun = self._phases.filter((self._phases["start_ns"] <= t) & (self._phases["end_ns"] > t))["start_ns"].max()
        return begun if isinstance(begun, int) else -1

    @cached_property
    def _phases(self) -> pl.DataFrame:
        ranges = self._profile.ranges.ranges
        return ranges.filter((ranges["thread"] == self.flow.thread) & (ranges["kind"] == "phase"))

    def _without_writes(
        self, made: int, theirs: Sequence[CollectiveOperator]
    ) -> Iterator[Sequence[CollectiveOperator]]:
        """Yield the collectives in runs between which nothing writes into the tensor (its number), nor into what they brought."""
        first = 0
        for n in range(1, len(theirs) + 1):
            if n == len(theirs) or self._is_written(made, theirs[n - 1], theirs[n]):
                yield theirs[first:n]
                first = n

    def _is_written(self, made: int, before: CollectiveOperator, behind: CollectiveOperator) -> bool:
        """Return whether something writes into a tensor (its number), or into the result of the first, between two collectives.

        What has no name and is as large may be another view of it.
        """
        begin, end, large = before.end_ns, behind.start_ns, math.prod(_size(before))
        first, last = np.searchsorted(self.flow.start_ns, [begin, end]).tolist()
        written = list[int]()
        for row in range(first, last):
            name, given = self.flow.names[row], self.flow.made[row]
            written += given if writes_lists(name) else given[:1] if in_place(name) else ()
            sizes = sizes_of(self.flow.size[row]) if in_place(name) and given[:1] == (-1,) else []
            if sizes and math.prod(sizes[0]) == large:
                return True
        for each in self._every:
            if begin <= each.start_ns < end and (_OVERWRITE.match(each.name) or place_of_sent(each.name)):
                written += each.given[:1]  # what it sends, or what it receives into
        between = self._others.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
        written += [number for number, _ in results_given(between["label"])]
        received = [
            number for number in (before.number, *before.given[: place_of_sent(before.name)]) if number is not None
        ]
        theirs = {made, self._base(made), *received} - {-1}
        return any(self._base(number) in theirs for number in written)

    def _base(self, number: int) -> int:
        """Return the number of the tensor of which a result is a view."""
        flow, row = self.flow, self.flow.row_of.get(number)
        while row is not None and flow.made[row] and is_view(flow.names[row]):
            number = flow.made[row][0]
            row = flow.row_of.get(number)
        return number

    def _of_functions(self, theirs: Sequence[CollectiveOperator]) -> Iterator[SentTensor]:
        """Yield those that the same function sends, or none does."""
        of_function: dict[str, list[SendingLayer]] = defaultdict(list)
        whole: dict[str, Size] = {}
        for each in theirs:
            sent, size = self._sent(each)
            of_function[sent.function].append(sent)
            whole[sent.function] = size
        for function, members in of_function.items():
            if len(members) > 1:
                yield SentTensor(theirs[0].name, self.flow.thread, _size(theirs[0]), whole[function], tuple(members))

    def _sent(self, each: CollectiveOperator) -> tuple[SendingLayer, Size]:
        """Return a collective with the function of autograd in which it is made, and what size that is given."""
        thread = self.flow.thread
        around = [call for call in self.flow.calls if call.start_ns <= each.start_ns and call.end_ns >= each.end_ns]
        module = around[-1].path if around else ""
        functions = self._functions.filter(
            (pl.col("start_ns") <= each.start_ns) & (pl.col("end_ns") >= each.end_ns) & (pl.col("thread") == thread)
        )
        if functions.height:
            _, begin, end, number, name, label = functions.row(-1)
            if self._only_sends(begin, end):
                listed = pl.Series([str(label)]).str.extract(SIZES, 1)[0]
                spans = (SpanOfThread(thread, begin, end), *self._nodes_of(number))
                return SendingLayer(each.start_ns, module, name, spans), next(iter(sizes_of(listed or "")), ())
        inside = self._numbered.filter(
            (pl.col("start_ns") >= each.start_ns) & (pl.col("end_ns") <= each.end_ns) & (pl.col("thread") == thread)
        )
        own_nodes = (
            inside.filter(pl.col("name").cast(pl.String).str.starts_with(_TORCHS_OWN))["number"].unique().to_list()
        )
        behind = [node for number in own_nodes for node in self._nodes_of(number) if node.begin_ns >= each.end_ns]
        return SendingLayer(each.start_ns, module, "", (SpanOfThread(thread, each.start_ns, each.end_ns), *behind)), ()

    def _nodes_of(self, number: int) -> list[SpanOfThread]:
        """Return when the node of a function is at work in backward."""
        nodes = self._nodes.filter(pl.col("number") == number)["thread", "start_ns", "end_ns"]
        return [SpanOfThread(*row) for row in nodes.iter_rows()]

    def _only_sends(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether what runs between two instants sends, and only hands on besides."""
        inside = self._operators.filter(
            (pl.col("thread") == self.flow.thread) & pl.col("start_ns").is_between(begin_ns, end_ns, closed="none")
        )
        names = inside["name"].cast(pl.String).unique().to_list()
        return all(_HANDS_ON.match(name) or _BESIDE.match(name) for name in names)

    @cached_property
    def _operators(self) -> pl.DataFrame:
        ranges = self._profile.ranges.ranges
        return ranges.filter(
            (ranges["process"] == self._profile.process) & (ranges["kind"] == "op") & ~ranges["repeated"]
        ).sort("start_ns")

    @cached_property
    def _others(self) -> pl.DataFrame:
        """Operators of other libraries on the flow's thread: what they write into is not known."""
        name = pl.col("name").cast(pl.String)
        return self._operators.filter(self._operators["thread"] == self.flow.thread).filter(
            name.str.contains("::") & ~name.str.contains(r"^(aten|prim|profiler|autograd|_?c10d\w*)::")
        )

    @cached_property
    def _numbered(self) -> pl.DataFrame:
        """Functions of autograd and their nodes, which carry the same number."""
        numbered = (pl.col("number") >= 0) & pl.col("name").cast(pl.String).str.contains(_FUNCTIONS)
        return self._operators.filter(numbered)["thread", "start_ns", "end_ns", "number", "name", "label"]

    @cached_property
    def _functions(self) -> pl.DataFrame:
        return self._numbered.filter(~are_nodes(self._numbered["name"]))

    @cached_property
    def _nodes(self) -> pl.DataFrame:
        return self._numbered.filter(are_nodes(self._numbered["name"]))


def _size(each: CollectiveOperator) -> Size:
    argument = place_of_sent(each.name) or 0
    return each.sizes[argument] if len(each.sizes) > argument else ()
