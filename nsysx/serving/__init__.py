"""The MCP server: reports stay loaded, and five tools answer from them with 2.5 kB at most."""
