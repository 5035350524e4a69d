"""``python -m nsysx`` is the same program as ``nsysx``."""

from nsysx.cli import program

program()
