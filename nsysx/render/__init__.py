"""Turns a Summary into what people and programs read: terminal, page, JSON, Markdown. Nothing is computed here."""
