"""What somebody meant whose command is written as only a shell would take it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence

from nsysx import redaction


def meant(command: Sequence[str]) -> str:
    """Return what somebody meant who typed a command as a shell would take it, "" if that is not clear."""
    name = command[0]
    if re.fullmatch(r"[A-Za-z_]\w*=\S*", name):
        return f"Did you mean: nsysx run -- env {redaction.shell(command)}"
    try:
        words = [*shlex.split(name), *command[1:]]
    except ValueError:
        return ""
    if len(words) > len(command) and (shutil.which(words[0]) or re.match(r"[A-Za-z_]\w*=", words[0])):
        env = "" if shutil.which(words[0]) else "env "
        return f"Did you mean, without the quotes: nsysx run -- {env}{redaction.shell(words)}"
    return ""
