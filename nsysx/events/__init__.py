"""Frames become events: calls joined to GPU work, ranges with a meaning, steps, modules, idle time and waits."""
