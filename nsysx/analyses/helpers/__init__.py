"""Computations that several tables of this room share."""
