"""One file, one question, one table. Each has KEY, TITLE, COLUMNS and ``table(profile)``; the pipeline finds them by itself.

``table`` returns a frame with exactly COLUMNS, or raises NotRecorded with what the capture lacks.
"""
