"""Replays the recorded steady steps, unchanged and with edits, to tell what a change would be worth."""
