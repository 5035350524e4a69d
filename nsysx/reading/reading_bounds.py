"""The numbers that the room ``reading`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- as_sqlite --------------------------------------------------------------------------------------------------
#: A file is copied in blocks of this size (bytes).
COPY_BLOCK_BYTES = 1 << 20
#: A copy leaves at least this much of the disk free.
SPARE_DISK_BYTES = 1 << 28
#: Time limit for nsys export.
EXPORT_LIMIT_S = 3600.0

# ---- capture_facts ----------------------------------------------------------------------------------------------
#: No session lasts this long (ns, 3 years), so an export with such times counts from 1970 (``nsys export --ts-normalize``).
SINCE_1970_NS = 10**17
#: An SM clock beyond this (MHz) is none.
MOST_CLOCK_MHZ = 100_000

# ---- capture_parts ----------------------------------------------------------------------------------------------
#: With more texts than this all ranges are read; a longer one (bytes) is no step.
MOST_RANGE_TEXTS, LONGEST_STEP_TEXT_BYTES = 50_000, 100
#: What the parts lie apart (ns).
PARTS_APART_NS = 1_000
#: After everything in a session (ns).
AFTER_SESSION_NS = 1 << 60

# ---- capture_totals ---------------------------------------------------------------------------------------------
#: A call's id of its name and its length (ns) travel as one integer; longer calls (18 minutes) and greater ids are no more counted.
CALL_LENGTH_BITS, MOST_CALL_NAMES = 40, 1 << 22

# ---- columnar ---------------------------------------------------------------------------------------------------
#: Rows that are turned into columns at once: they fit the cache.
COLUMN_BLOCK_ROWS = 65_536

# ---- counter_samples --------------------------------------------------------------------------------------------
#: Threads that read at most: more of them wait for the disk.
COUNTER_THREADS = 8
#: Rounding gives slightly more than 100 %; a value above this is not a share.
MOST_PERCENT = 110
#: A clock below this is in MHz after all.
LEAST_CLOCK_HZ = 1_000_000

# ---- decoding ---------------------------------------------------------------------------------------------------
#: A lookup table over ids is used if it is at most this many times as long as the column.
DENSE_LOOKUP_TIMES = 64
#: Number of strings per query.
STRINGS_PER_QUERY = 10_000
#: The ids that stand for a name that was not recorded and for one whose id is impossible.
ID_NOT_RECORDED, ID_IMPOSSIBLE = -1, -2

# ---- device_limits ----------------------------------------------------------------------------------------------
#: No device has this much of anything; a larger value is damage.
MOST_OF_A_DEVICE = 1 << 53
#: A minor compute capability beyond this is none.
MOST_MINOR = 100

# ---- joined_windows ---------------------------------------------------------------------------------------------
#: What the parts lie apart in the joined capture (ns).
JOINED_WINDOWS_APART_NS = 1_000
#: Added to the numbers of the second report's NVTX domains, which count anew. 0 is the default domain in both.
SECOND_REPORT_DOMAINS = 1 << 32

# ---- load -------------------------------------------------------------------------------------------------------
#: From so many rows on a capture may be read in parts: before that, all of it is read in a few seconds.
LONG_CAPTURE_ROWS = 2_000_000

# ---- opening ----------------------------------------------------------------------------------------------------
#: How much of a file is read to tell what it is.
FILE_HEAD_BYTES = 4096
#: Characters of a SQLite message that are shown.
SQLITE_MESSAGE_LETTERS = 120
#: How long to wait for another process that has locked the file.
LOCKED_FILE_S = 5.0
#: No file that nsysx writes beside a report is this large.
MOST_BESIDE_BYTES = 1 << 28

# ---- placing ----------------------------------------------------------------------------------------------------
#: A time beyond this (ns, 73 years) is damaged, even if times count from 1970.
LAST_TIME_NS = 1 << 61
#: 13 days (ns): no range lasts longer, and no two rows of a session lie further apart.
LONGEST_RANGE_NS = 1 << 50
#: A size beyond this (bytes) is damaged.
MOST_SIZE_BYTES = 1 << 53
#: The driver allows 32 GPUs in a system (NV_MAX_DEVICES in its nvlimits.h), and MIG divides a GPU into at most 7.
MOST_DEVICES = 256
#: The device of a CUDA graph that begins with a host node (CUpti_ActivityGraphTrace).
HOST_NODE_DEVICE = (1 << 31) - 1
#: Upper limit for the sum of the durations, or of the sizes, of one table, so that the sum over all tables fits into 64 bits.
MOST_TABLE_SUM = 1 << 60

# ---- samples ----------------------------------------------------------------------------------------------------
#: Rows that are read at once; a stack is about a kilobyte of text.
SAMPLE_ROWS_AT_ONCE = 50_000
#: Only this many innermost frames of a deeper stack are kept. Python's default recursion limit is 1,000.
MOST_STACK_FRAMES = 1_000
#: No file has this many lines; some versions of nsys leave the upper half of the number uninitialized.
MOST_FILE_LINES = 10_000_000
#: No row of StringIds has this id.
MOST_STRING_IDS = 1 << 31
#: What stands for a sample without a text, with one that is no JSON, and with one without frames.
NO_TEXT, NO_JSON, NO_FRAMES = -1, -2, -3

# ---- selecting --------------------------------------------------------------------------------------------------
#: Tables are read in pieces of this many rows, so that there are enough pieces to keep every thread busy until the end.
PIECE_ROWS = 400_000
#: Least size of a row in the file: its length, its rowid, a header of one column and its pointer in the page.
LEAST_ROW_BYTES = 6

# ---- table_rows -------------------------------------------------------------------------------------------------
#: Threads that read at most: more of them wait for the disk.
TABLE_THREADS = 8
#: Each thread beside the first has at least so much of the report to read.
TABLE_THREAD_BYTES = 2_000_000
#: Rows that are fetched at once: they fit the cache.
TABLE_BATCH_ROWS = 65_536

# ---- trials_log -------------------------------------------------------------------------------------------------
#: Lines that are read, the last ones: nobody tries more.
MOST_TRIAL_LINES = 1000
