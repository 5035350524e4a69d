"""Turns a report on disk into frames: which tables and columns it has, how they are read, and what NCCL recorded in it."""
