"""Turns a Summary into what people and programs read: terminal, page, JSON, Markdown. Nothing is decided here.

What comes first, what it is worth and how sure that is stand in the Summary's answer. An output words it, cuts it to the room there is,
orders the rows of a table by the column that the table names, shows sums per step, and scales what it draws.
"""
