"""The command line: one file per command, each a few lines that call a room; `process` turns errors into exit codes."""
