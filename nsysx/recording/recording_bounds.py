"""The numbers that the room ``recording`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- calibration_run --------------------------------------------------------------------------------------------
#: Each process is timed without and with tracing; a fourth process did not change the median.
CALIBRATION_PROCESSES = 3
#: Time limit for each nsys command (s); starting, measuring and exporting together take a quarter of it.
CALIBRATION_COMMAND_S = 120
#: Upper limit of the factor by which a call among other work costs more than one in a tight loop that runs from the cache.
MOST_IN_PLACE_TIMES = 3.0

# ---- capture ----------------------------------------------------------------------------------------------------
#: With less free space than this (bytes) a recording warns before it starts.
LOW_DISK_BYTES = 2 << 30
#: Letters of a command line that are shown. Chosen: one line of a terminal beside its label.
SHOWN_COMMAND = 60

# ---- find_nsys --------------------------------------------------------------------------------------------------
#: A helper that neither computes nor waits for a disk for this long hangs, and how often that is looked at.
HELPER_IDLE_S, HELPER_LOOK_S = 4.0, 0.25

# ---- follow -----------------------------------------------------------------------------------------------------
#: The command may stop only some time after the suspend key's signal, once it has restored its terminal.
SUSPENDED_WITHIN_S = 2.0
#: SIGCHLD reports a child's end at once; these are for a SIGCHLD that gets lost, and for a command that is not our child.
CHILD_LOOK_S, OTHER_LOOK_S = 0.25, 0.05

# ---- inbox ------------------------------------------------------------------------------------------------------
#: Sent by the kernel, which means by a terminal to the whole group (asm-generic/siginfo.h).
SI_KERNEL = 0x80
#: A scheduler signals the processes of a job one after another, and the witness may be the last. On a busy machine it may have to
#: wait for a processor before it can tell; a witness that sleeps has got nothing.
WITNESS_S, BUSY_WITNESS_S = 0.1, 10.0
#: A signal that the witness got longer ago than this is not the one that has just arrived here.
FRESH_SIGNAL_NS = 1_000_000_000

# ---- install_nsys -----------------------------------------------------------------------------------------------
#: Time limit of the download (s): a slow link needs minutes for the package.
DOWNLOAD_S = 1800.0

# ---- limiter ----------------------------------------------------------------------------------------------------
#: What nsys's agent writes for one event.
BYTES_PER_EVENT = 43
#: How often nsys's file is measured; the least time in which a step has to end; and how long a window may take to close once it is asked
#: to: nsys needs 3 s.
LIMIT_LOOK_S, STEP_END_PATIENCE_S, WINDOW_CLOSING_S = 1.0, 10.0, 20.0
#: How long a process may take to see that its devices are to come to rest (Python may be in one long call), and how long they may need.
SEES_S, RESTS_S = 5.0, 75.0
#: How long after ``nsys stop`` the program stands still at most, and what nsys prints when it records no more.
STOPS_S = 10.0
#: Without steps for so many times the limit, a window that has some closes as one that has none.
WITHOUT_STEPS_TIMES = 2.0

# ---- nsys_process -----------------------------------------------------------------------------------------------
#: An nsys that neither computes nor waits for a disk for this long hangs. A working nsys was never idle for over 1 s (measured).
NSYS_IDLE_S = 7.0
#: How often nsys is looked at; reading /proc takes about a millisecond.
NSYS_LOOK_S = 0.25
#: After a longer gap between two looks this process itself stood still, and nsys with it: a paused virtual machine or container.
STOOD_STILL_S = 2.0
#: An agent whose nsys was killed waits forever and uses up to 3.3 % of a processor (measured). It counts as working only above this
#: share of a processor over this many seconds.
AGENT_WORKS_SHARE, AGENT_WORKS_OVER_S = 0.1, 1.0
#: How long such an agent may be idle: nobody is left to tell it to go on.
ORPHANED_AGENT_S = 3.0
#: A new process shows its name only after a moment, and a killed one stays while a disk access lasts.
QUIET_LOOKS, KILLED_WITHIN_S = 3, 5.0

# ---- per_rank ---------------------------------------------------------------------------------------------------
#: No script of a launcher is longer (bytes); what is, is a program.
LAUNCHER_SCRIPT_BYTES = 1 << 20

# ---- record -----------------------------------------------------------------------------------------------------
#: nsys needs half a second to start the stand-in, several seconds from a cold network drive. It gets this long while it works.
STAND_IN_START_S = 60.0
#: nsys holds its lock of all sessions for milliseconds; who holds it for this long does not give it back.
SESSION_LOCK_S = 2.0
#: With less than this free in the temporary folder nsys may not start, and what it collects would not fit.
LEAST_TEMPORARY_BYTES = 64 << 20
#: A Ctrl-C this soon after the command's end was meant for the command.
CTRL_C_GRACE_S = 1.0

# ---- reports ----------------------------------------------------------------------------------------------------
#: With less free space than this, a full disk is the likely cause of a failure.
FULL_DISK_BYTES = 1 << 20

# ---- stand_in_link ----------------------------------------------------------------------------------------------
#: Limit for the stand-in's answers, which normally come at once. Most are counted in looks, because this process may stand still.
STAND_IN_ANSWER_S, STAND_IN_ANSWER_LOOK_S, STAND_IN_ANSWER_LOOKS = 10.0, 0.1, 600

# ---- then_stop --------------------------------------------------------------------------------------------------
#: How long a program that is told to stop may take to end (s).
STOPPED_GRACE_S = 30.0

# ---- window_plan ------------------------------------------------------------------------------------------------
#: The first nsys with the CUPTI of CUDA 12.6, and the first driver for which nsys loads a CUPTI that new: older ones crash where
#: CUDA graphs are replayed when CUPTI comes back (pytorch/pytorch#146604).
DRIVER_OF_CUDA_12_6 = 525
#: Where whoever had the first window ends before its second one, the next process gets two: so many windows nsys opens at most.
MOST_WINDOWS = 32
#: Ends with this code if there is no driver, or if it finds no device; in a process of its own, because a driver's start stays. It gets
#: so long (s).
NO_CUDA_EXIT, CUDA_STARTS_S = 9, 20.0

# ---- windows_link -----------------------------------------------------------------------------------------------
#: nsys opens the first window in 0.2 s. It gets this long.
WINDOW_OPENS_S = 30.0

# ---- default_counters -----------------------------------------------------------------------------------------------
#: How often they are sampled (Hz), by default and where they are asked for, so that a kernel spans several samples.
DEFAULT_COUNTERS_HZ, ASKED_COUNTERS_HZ = 2_000, 20_000
#: The samples of a report are kept of the last seconds of its kernels (ns), 4,000 of each counter, or fewer, 500 at least: as many as take
#: this share of what the export holds else. A row of theirs takes so many bytes (nsys 2025.3: 30 to 34).
KEPT_COUNTERS_NS, LEAST_COUNTERS_NS = 2_000_000_000, 250_000_000
COUNTERS_OF_EXPORT_SHARE, COUNTER_ROW_BYTES = 0.15, 32
#: Of so many samples of a link's counter one is kept: what they take is a few percent of the others.
LINK_SAMPLES_APART = 10
#: The bit of CAP_SYS_ADMIN among the effective capabilities of a process, see capabilities(7).
SYS_ADMIN_BIT = 1 << 21
