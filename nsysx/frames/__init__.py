"""Arithmetic over intervals, integer columns and ranks of values: what every later room computes with."""
