"""Bounds of rooms that read the operators of an X-ray step, beside those in ``event_bounds``."""

# ---- frozen_operators -----------------------------------------------------------------------------------------------
#: Numbers of a sample that are worth keeping for each: a megabyte in 16 bits. Chosen: logits of a vocabulary are far more.
MOST_KEPT_NUMBERS = 1 << 19
# ---- padded_experts -------------------------------------------------------------------------------------------------
#: Rows of experts that are so many times the tokens are mostly padding. Chosen: usual capacities are 1 to 1.5 times.
PADDED_EXPERTS_TIMES = 2
# ---- product_forms --------------------------------------------------------------------------------------------------
#: A product with turned one-hot rows of fewer classes is bound by memory, and what adds up by number waits for itself. Chosen.
FEWEST_CLASSES_ADDED = 256
