"""The numbers that the rules about batches were tuned with, as ``_finding_bounds`` holds those of the other rules."""

from __future__ import annotations

# ---- _padding ---------------------------------------------------------------------------------------------------
#: Padding is worth a word from this share of the batch on, and beyond its longest sample from this share of the length. Rows that are
#: filled up to a power of two are at most twice as long as the longest sample.
MUCH_PADDING_SHARE, BEYOND_LONGEST_SAMPLE_SHARE, ROUNDED_UP_SHARE = 0.3, 0.1, 0.5
# ---- _padding, _collated_length ---------------------------------------------------------------------------------
#: What the length of a batch is rounded up to: by powers of two between these ends, so many in the width that rows have now. 8 suits the
#: tiles of products, and up to 512 there are 64 lengths by 8, each of which makes its first step slower (kernels chosen, memory asked
#: for anew), and 8 by 64 (an encoder of rows 512 wide on an H200, its first seconds: 80 ms a step by 8, 74 by 64, 118 as it was).
SHORT_MULTIPLE, LONG_MULTIPLE, WIDTH_IN_MULTIPLES = 8, 64, 8
#: Of what rows reach beyond the longest sample, rounding up gives back this share at most. Chosen.
ROUNDED_BACK_SHARE = 0.5
# ---- _cache_texts -----------------------------------------------------------------------------------------------
#: So many lines below a test begins what it lets run: a remark may stand between. What an ``else`` lets run begins one line later.
MOST_LINES_TO_BODY = 2
#: Names that are given a key which stands in a name, and so on.
DEEPEST_KEY_NAMES = 3
# ---- _made_again ------------------------------------------------------------------------------------------------
#: Shares of the host code before a call are told apart by so much, so that a replay has few changes. Chosen.
HOST_SHARE_APART = 0.05
# ---- _same_returned ---------------------------------------------------------------------------------------------
#: A function makes the same if it returned that in so many steps. Chosen: three of a window's end and one of the cold start are looked at.
FEWEST_RETURNED_STEPS = 3
