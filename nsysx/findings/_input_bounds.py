"""The numbers that the rules about batches were tuned with, as ``_finding_bounds`` holds those of the other rules."""

from __future__ import annotations

# ---- _padding ---------------------------------------------------------------------------------------------------
#: Padding is worth a word from this share of the batch on, and beyond its longest sample from this share of the length. Rows that are
#: filled up to a power of two are at most twice as long as the longest sample.
MUCH_PADDING_SHARE, BEYOND_LONGEST_SAMPLE_SHARE, ROUNDED_UP_SHARE = 0.3, 0.1, 0.5
# ---- _collated_length -------------------------------------------------------------------------------------------
#: Samples of so many tokens are long: batches of them are rounded up to the greater multiple, an eighth at most. Chosen: 8 suits the tiles
#: of products, and of lengths up to 2,048 there are 32 by 64, each of which costs a step that is slower, and 256 by 8.
LONG_SAMPLE, LONG_MULTIPLE, SHORT_MULTIPLE = 512, 64, 8
