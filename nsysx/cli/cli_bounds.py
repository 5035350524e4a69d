"""The numbers that the room ``cli`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- app ------------------------------------------------------------------------------------------------------------
#: Columns of an 80-column terminal that are left beside the indentation.
HELP_WIDTH = 76

# ---- command_output -------------------------------------------------------------------------------------------------
#: Columns of a terminal: below the first no table fits, and the second, the usual width, is used instead.
NARROWEST_TERMINAL, USUAL_TERMINAL = 20, 80

# ---- config ---------------------------------------------------------------------------------------------------------
#: No file of options is this long; a longer one is not read.
MOST_OPTION_BYTES = 1_000_000
