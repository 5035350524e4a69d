"""The command line: a file a command, each a few lines that call a room; `process` turns errors into exit codes."""
