"""Declared frames, and the arithmetic over intervals, long columns and ranks of values that all later rooms use."""
