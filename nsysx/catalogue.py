"""The words for where time goes, each declared once: what limits a step, its parts, what a device does, causes of idle time, why a
rank is late; and the kinds of API calls and of GPU work, the parts of a thread's time, and the keys of the colors. They are the
field's own terms, and the only source of labels: one thing has one name in every output.

Each is a string: its code, as in the JSON. What else is known about it are attributes, so that every room reads the same. A new
one is one line here, and what recognizes it; if it comes from a kind of API call, its line is all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

_C = TypeVar("_C", bound="_Code")


class _Code(str, enum.Enum):
    """A code that is a string everywhere, as in the JSON and in the keys of rows."""

    def __new__(cls: type[_C], code: str, *_: object) -> _C:
        self = str.__new__(cls, code)
        self._value_ = code
        return self

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def named(cls: type[_C], code: str) -> _C:
        """Return the member with this code. ValueError if there is none."""
        for member in cls:
            if member.value == code:
                return member
        raise ValueError(f"{code!r} is no {cls.__name__}")

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Paint:
    """The keys of the colors in pictures; one color is one kind of work everywhere."""

    COMPUTE: Final = "compute"
    COMM: Final = "comm"
    COPY: Final = "copy"
    MEMSET: Final = "memset"
    LAUNCH: Final = "launch"
    SYNC: Final = "sync"
    ALLOC: Final = "alloc"
    LOAD: Final = "load"
    OTHER: Final = "other"
    DATA: Final = "data"
    PROFILER: Final = "profiler"
    DEPENDENCY: Final = "dependency"
    GAP: Final = "gap"
    OUTSIDE: Final = "outside"
    IDLE: Final = "idle"


class StepLimit(_Code):
    """What limits the step: the code of a verdict, and its ``label``."""

    def __init__(self, code: str, label: str) -> None:
        self.label = label

    GPU = "gpu_bound", "GPU-bound"
    LAUNCH = "launch_bound", "host-bound"
    INPUT = "input_bound", "input-bound"
    SYNC = "sync_bound", "sync-bound"
    COPY = "copy_bound", "copy-bound"
    COMM = "comm_bound", "communication-bound"
    ALLOC = "alloc_bound", "allocator-bound"
    WARMUP = "warmup", "one-time cost"
    UNKNOWN = "unknown", "limit unknown"


#: What the device does while host code and launches in flight keep it without work: one cause, so one name.
AT_LAUNCHES: Final = "waiting for kernel launches"
#: The same where one line of the program is behind most of it.
AT_HOST_CODE: Final = "waiting for host code"


class StepPart(_Code):
    """A part of the step on the busiest device, in the order in which they are shown; they sum to it.

    ``label`` names it in a list, ``drawn`` in the picture of a step ("" if it is part of another there), ``color`` is its key in the
    pictures, ``idle``: the device is short of work. ``limit`` is what it counts for if somebody could remove it; the others are
    the GPU's own, or nobody's to remove.
    """

    def __init__(self, code: str, label: str, drawn: str, color: str, idle: bool, limit: StepLimit | None) -> None:
        self.label, self.drawn, self.color, self.idle, self.limit = label, drawn, color, idle, limit

    WORK = "work", "compute", "compute", Paint.COMPUTE, False, None
    PAUSE = "pause", "inter-kernel gaps", "inter-kernel gaps", Paint.GAP, True, None
    DEPENDENCY = (
        "dependency", "waiting for other GPU work", "waiting for other GPU work", Paint.DEPENDENCY, True, None,
    )  # fmt: skip
    COMM = "comm", "exposed communication", "exposed communication", Paint.COMM, False, StepLimit.COMM
    HOST_COMM = (
        "host_comm", "communication on the host", "communication on the host", Paint.COMM, True, StepLimit.COMM,
    )  # fmt: skip
    COPY = "copy", "exposed copies", "exposed copies", Paint.COPY, False, StepLimit.COPY
    MIGRATION = (
        "migration", "exposed page migration", "exposed page migration", Paint.COPY, False, StepLimit.COPY,
    )  # fmt: skip
    INPUT = "input", "waiting for input data", "waiting for input data", Paint.DATA, True, StepLimit.INPUT
    SYNC = (
        "sync",
        "idle after host syncs",
        "idle after host syncs",
        Paint.SYNC,
        True,
        StepLimit.SYNC,
    )
    ALLOC = "alloc", "allocator calls", "allocator calls", Paint.ALLOC, True, StepLimit.ALLOC
    LOAD = (
        "load",
        "loading of kernels and libraries",
        "loading of kernels and libraries",
        Paint.LOAD,
        True,
        StepLimit.WARMUP,
    )
    START_UP = "start_up", "one-time cost", "one-time cost", Paint.LOAD, True, StepLimit.WARMUP
    HOST = "host", "host code between launches", AT_LAUNCHES, Paint.OUTSIDE, True, StepLimit.LAUNCH
    LAUNCH = "launch", "kernel launch latency", "", Paint.LAUNCH, True, StepLimit.LAUNCH
    LONGER = (
        "longer", "longer steps that were not recorded", "longer steps, not recorded", Paint.IDLE, True, None,
    )  # fmt: skip
    PROFILER = "profiler", "the profiler itself", "", Paint.PROFILER, True, None
    UNTRACED = "untraced", "launched outside the trace", "launched outside the trace", Paint.IDLE, True, None
    ELSEWHERE = "elsewhere", "long pauses in which the program does something else", "", Paint.IDLE, False, None


class DeviceActivity(_Code):
    """What a device does at an instant: where several run at once, the first counts. Together they are its window.

    ``label`` is its name in a picture and its code the key of its color, ``noun`` names it in a comparison.
    """

    def __init__(self, code: str, label: str, noun: str) -> None:
        self.label, self.noun = label, noun

    COMPUTE = "compute", "compute", "compute kernels"
    COMM = "comm", "communication", "exposed communication"
    COPY = "copy", "copy", "exposed copies"
    MEMSET = "memset", "memset", "memsets"
    IDLE = "idle", "idle", "GPU idle time"

    @property
    def column(self) -> str:
        """The column with its time in ledgers, in ns."""
        return f"{self}_ns"


#: What a device does while it works.
WORKING: tuple[DeviceActivity, ...] = tuple(a for a in DeviceActivity if a is not DeviceActivity.IDLE)


class Late(_Code):
    """Why a rank is late: ``label`` says where it loses its time, ``doing`` what it does longer, with a gap for the time."""

    def __init__(self, code: str, label: str, doing: str) -> None:
        self.label, self.doing = label, doing

    INPUT = "input", "in loading data", "loads data {} longer"
    COMPUTE = "compute", "in GPU work", "computes {} longer"
    PROFILER = "profiler", "under the profiler", "is held up {} longer by the profiler"
    HOST = "host", "in its host code", "spends {} longer in its host code"
    CALLS = "extra_calls", "in calls that its peers do not make", "spends {} longer in calls that its peers do not make"
    CLOCKS = "clocks", "in the same kernels, which take longer on its GPU", "takes {} longer for the same kernels"
    HELD_CLOCK = "held_clock", "in GPU work, at a lower GPU clock", "takes {} longer at a lower GPU clock"
    SHARED_GPU = (
        "shared_gpu",
        "while another process has its GPU in turn",
        "takes {} longer beside another process on its GPU",
    )
    UNKNOWN = "unknown", "in no single part of the breakdown", "takes {} longer"


class Surplus(_Code):
    """In which kinds of GPU work a rank takes longer than its peers."""

    ONE, EVERY, SEVERAL = "one kind", "every kind", "several kinds"
    #: None of it runs on the peers, which have as much of all else.
    LONE = "lines of its own"


class Call:
    """The kinds of CUDA API calls: the words in the column ``kind`` of calls, and the kinds that count together.

    They are plain strings, not members of an enum: polars raises where a categorical series is compared with those.
    """

    LAUNCH: Final = "launch"
    GRAPH_LAUNCH: Final = "graph_launch"
    COPY: Final = "copy"
    MEMSET: Final = "memset"
    SYNC: Final = "sync"
    ALLOC: Final = "alloc"
    FREE: Final = "free"
    HOST_ALLOC: Final = "host_alloc"
    LOAD: Final = "load"
    EVENT: Final = "event"
    OTHER: Final = "other"

    #: All of them.
    KINDS: Final = (LAUNCH, GRAPH_LAUNCH, COPY, MEMSET, SYNC, ALLOC, FREE, HOST_ALLOC, LOAD, EVENT, OTHER)
    #: They start kernels.
    LAUNCHES: Final = (LAUNCH, GRAPH_LAUNCH)
    #: They allocate or free memory, and may wait for the device to do it.
    ALLOCATOR: Final = (ALLOC, FREE, HOST_ALLOC)
    #: They wait for work that was launched before.
    WAITS: Final = (SYNC, COPY)
    #: They give work to the device, or wait for it: equal steps of two processes make as many of them.
    OF_WORK: Final = (LAUNCH, GRAPH_LAUNCH, COPY, MEMSET, SYNC)


class CpuPart(_Code):
    """A part of a thread's time: inside CUDA calls of these ``kinds`` (self time), or outside of all. They sum to its window.

    ``label`` is its name in a picture, ``color`` the key of its color.
    """

    def __init__(self, code: str, label: str, color: str, kinds: tuple[str, ...]) -> None:
        self.label, self.color, self.kinds = label, color, kinds

    LAUNCH = "launch", "kernel launches", Paint.LAUNCH, Call.LAUNCHES
    COPY = "copy", "copy calls", Paint.COPY, (Call.COPY, Call.MEMSET)
    SYNC = "sync_wait", "host syncs", Paint.SYNC, (Call.SYNC,)
    ALLOC = "alloc", "allocator calls", Paint.ALLOC, Call.ALLOCATOR
    LOAD = "load", "loading of kernels and libraries", Paint.LOAD, (Call.LOAD,)
    OTHER = "other_api", "other CUDA calls", Paint.OTHER, (Call.EVENT, Call.OTHER)
    OUTSIDE = "outside_api", "outside CUDA calls", Paint.OUTSIDE, ()

    @property
    def column(self) -> str:
        """The column with its time in ledgers, in ns."""
        return f"{self}_ns"


class Trait(enum.Flag):
    """What else is known about a cause of idle time.

    ``BLOCKS``: it holds its thread until work is done, and the outer of two such calls counts. ``DRIFTS``: it differs from
    process to process, or a profiler makes it longer. ``GPUS_OWN``: it ends when the GPU itself is ready, whatever the host does.
    """

    NONE = 0
    BLOCKS = enum.auto()
    DRIFTS = enum.auto()
    GPUS_OWN = enum.auto()


class Cause(_Code):
    """Why a device idles. Its place in the order is its number in frames: new ones go to the end.

    ``label`` is its name in a picture, ``noun`` in a comparison, ``color`` its key in the pictures. ``part`` is the part of the
    step that it counts for, ``late`` what it says about a late rank (None: nothing, it waits itself), ``kinds`` are the API kinds in
    whose calls it lies.
    """

    def __init__(
        self,
        code: str,
        label: str,
        noun: str,
        color: str,
        part: StepPart,
        late: Late | None,
        kinds: tuple[str, ...],
        trait: Trait,
    ) -> None:
        self.label, self.noun, self.color = label, noun, color
        self.part, self.late, self.kinds, self.trait = part, late, kinds, trait

    LAUNCH_LATENCY = (
        "launch_latency", "kernel launch latency", "kernel launch latency",
        Paint.LAUNCH, StepPart.LAUNCH, Late.HOST, (), Trait.DRIFTS,
    )  # fmt: skip
    SYNC = (
        "sync", "host sync", "host syncs",
        Paint.SYNC, StepPart.SYNC, Late.HOST, (Call.SYNC,), Trait.BLOCKS,
    )  # fmt: skip
    ALLOC = (
        "alloc", "allocator calls", "allocator calls",
        Paint.ALLOC, StepPart.ALLOC, Late.HOST, Call.ALLOCATOR, Trait.BLOCKS,
    )  # fmt: skip
    LOAD = (
        "load", "loading of kernels and libraries", "loading of kernels and libraries",
        Paint.LOAD, StepPart.LOAD, Late.HOST, (Call.LOAD,), Trait.NONE,
    )  # fmt: skip
    COPY_CALL = (
        "copy_call", "copy calls", "copy calls",
        Paint.COPY, StepPart.SYNC, Late.HOST, (Call.COPY, Call.MEMSET), Trait.BLOCKS,
    )  # fmt: skip
    OTHER_API = (
        "other_api", "other CUDA calls", "other CUDA calls",
        Paint.OTHER, StepPart.LAUNCH, Late.HOST, (*Call.LAUNCHES, Call.EVENT, Call.OTHER), Trait.DRIFTS,
    )  # fmt: skip
    DATA_LOADER = (
        "data_loader", "data loading", "data loading",
        Paint.DATA, StepPart.INPUT, Late.INPUT, (), Trait.NONE,
    )  # fmt: skip
    PROFILER = (
        "profiler", "the profiler itself", "the profiler itself",
        Paint.PROFILER, StepPart.PROFILER, Late.PROFILER, (), Trait.DRIFTS,
    )  # fmt: skip
    HOST_CODE = (
        "host_code", "host code (Python)", "host code between launches",
        Paint.OUTSIDE, StepPart.HOST, Late.HOST, (), Trait.DRIFTS,
    )  # fmt: skip
    DEPENDENCY = (
        "dependency", "waiting for other GPU work", "waiting for other GPU work",
        Paint.DEPENDENCY, StepPart.DEPENDENCY, Late.HOST, (), Trait.GPUS_OWN,
    )  # fmt: skip
    KERNEL_GAP = (
        "kernel_gap", "inter-kernel gaps", "inter-kernel gaps",
        Paint.GAP, StepPart.PAUSE, Late.COMPUTE, (), Trait.GPUS_OWN,
    )  # fmt: skip
    UNTRACED_LAUNCH = (
        "untraced_launch", "launched outside the trace", "launched outside the trace",
        Paint.IDLE, StepPart.UNTRACED, Late.HOST, (), Trait.NONE,
    )  # fmt: skip
    NO_FURTHER_WORK = (
        "no_further_work", "nothing more launched", "no further work",
        Paint.IDLE, StepPart.UNTRACED, Late.HOST, (), Trait.NONE,
    )  # fmt: skip
    HOST_COMM = (
        "host_comm", "communication on the host", "communication on the host",
        Paint.COMM, StepPart.HOST_COMM, None, (), Trait.NONE,
    )  # fmt: skip

    @property
    def number(self) -> int:
        """Its number in frames."""
        return _NUMBER[self]

    @staticmethod
    def of_call(kind: str) -> Cause:
        """Return what a call of this API kind means for a device that idles meanwhile."""
        return _OF_KIND.get(kind, Cause.OTHER_API)


#: The codes by their number in frames.
CAUSES: tuple[str, ...] = tuple(cause.value for cause in Cause)

_NUMBER = {cause: number for number, cause in enumerate(Cause)}
_OF_KIND = {kind: cause for cause in Cause for kind in cause.kinds}

#: Kinds of GPU work, by family; one that is not listed goes by its own name.
FAMILIES: Mapping[str, str] = {
    "gemm": "GEMM",
    "convolution": "convolutions",
    "attention": "attention",
    "elementwise": "elementwise kernels",
    "norm": "normalization",
    "reduction": "reductions",
    "sort, scan and gather": "sorting and indexing",
    "softmax and loss": "softmax and loss",
    "optimizer": "optimizer kernels",
    "resampling": "resampling",
    "pooling": "pooling",
    "communication": "communication",
    "embedding": "embeddings",
    "random": "random numbers",
    "copy": "copies inside the GPU",
    "memcpy": "copies",
    "graph": "CUDA graphs whose kernels were not recorded",
}
