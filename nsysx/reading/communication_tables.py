"""The tables of a report in which nsys notes what MPI and UCX do."""

from __future__ import annotations

from nsysx.reading.source_table import END, START, Source, SourceColumn, source_column

_COMMUNICATOR = source_column(
    "communicator", "commHandle", required=False, meaning="handle of the communicator in its process"
)
_REQUEST = source_column(
    "request", "requestHandle", required=False, meaning="handle of the request that completes it later"
)
_PEER = source_column(
    "peer", "remoteRank", required=False, meaning="rank in the communicator that it sends to or receives from"
)
_SENT = source_column(
    "bytes", "size", unit="bytes", required=False, meaning="bytes of the message; of a collective, that are sent"
)
_RECEIVED = source_column("received_bytes", "recvSize", unit="bytes", required=False, meaning="bytes that are received")
_PACKED = source_column("bytes", "packedSize", unit="bytes", required=False, meaning="bytes of the message")
_OF_MESSAGE = (_COMMUNICATOR, source_column("tag", "tag", required=False, meaning="tag of the message"), _SENT)


def _table(frame: str, table: str, *columns: SourceColumn) -> Source:
    return Source(frame, table, columns, "nsysx run --mpi", optional=True)


def _calls(frame: str, table: str, library: str, *more: SourceColumn) -> Source:
    """Return the declaration of a table with a row per call of a library."""
    thread = source_column("thread", "globalTid", meaning="thread that calls")
    name = source_column("name", "textId", "name", meaning=f"function of {library}")
    return _table(frame, table, START, END, thread, name, *more)


COMMUNICATION = (
    *(
        _calls(frame, table, "MPI", *more)
        for frame, table, more in (
            ("mpi_message", "MPI_P2P_EVENTS", (*_OF_MESSAGE, _PEER, _REQUEST)),
            ("mpi_collective", "MPI_COLLECTIVES_EVENTS", (_COMMUNICATOR, _SENT, _RECEIVED, _REQUEST)),
            ("mpi_completion", "MPI_START_WAIT_EVENTS", (_REQUEST,)),
        )
    ),
    _table(
        "mpi_communicator",
        "MPI_COMMUNICATORS",
        source_column("time_ns", "timestamp", unit="ns", required=False, meaning="when it was made"),
        source_column("world_rank", "rank", required=False, meaning="rank of the process in MPI_COMM_WORLD"),
        _COMMUNICATOR,
        source_column(
            "parent", "parentHandle", required=False, meaning="communicator that it was made from, 0 for none"
        ),
        source_column("rank", "localRank", required=False, meaning="rank of the process in it"),
        source_column("size", "size", required=False, meaning="ranks in it"),
        source_column("first_rank", "groupRoot", required=False, meaning="rank of its first member in MPI_COMM_WORLD"),
    ),
    _table(
        "mpi_rank",
        "MPI_RANKS",
        source_column("thread", "globalTid", meaning="thread that called MPI_Init"),
        source_column("rank", "rank", meaning="rank in MPI_COMM_WORLD"),
    ),
    *(
        _calls(frame, table, "UCX", _PACKED)
        for frame, table in (("ucx_call", "UCP_SUBMIT_EVENTS"), ("ucx_transfer", "UCP_PROGRESS_EVENTS"))
    ),
)
