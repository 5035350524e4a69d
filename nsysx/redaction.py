"""Secrets in a command line, hidden before it is shown or written: the one place that decides what a secret is.

A command line ends up in the terminal, in the log of a CI run, in NAME.run.json and in the JSON of a trial, and all of them are
attached to tickets. Standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

HIDDEN = "***"

#: Last words of a name whose value is a secret: --hf-token, WANDB_API_KEY, db.password, clientSecret.
_SECRETS = frozenset(
    (
        *(
            "token",
            "secret",
            "secrets",
            "password",
            "passwd",
            "passphrase",
            "pass",
            "pwd",
            "pw",
            "credential",
            "credentials",
        ),
        *("auth", "authorization", "apikey", "cookie", "jwt", "bearer", "signature", "sig"),
    )
)
#: Before the last word "key": an api_key is a secret, a cache_key is none.
_KEYS = frozenset(
    (
        "api",
        "access",
        "private",
        "secret",
        "account",
        "auth",
        "license",
        "encryption",
        "signing",
        "ssh",
        "service",
        "shared",
    )
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Values that are no secret whatever their name: a switch, and of a token a count or a mark (``--pad-token '[PAD]'``).
_SWITCH = re.compile(r"(?i)true|false|none|null|yes|no|on|off|auto|")
_MARK = re.compile(r"\d{1,7}|<[^>]*>|\[[^\]]*\]|</?s>")

#: What is a secret wherever it stands: forms that services give their tokens, and the user in an address.
_FORMS = re.compile(
    r"\b(?:hf_|gh[opsur]_|npm_|AKIA|ASIA)(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}"
    r"|\b(?:github_pat_|glpat-|xox[abeprs]-|sk-|pypi-|dop_v1_|nvapi-|AIza)(?=[A-Za-z_-]*\d)[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
_USER = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"@]*(?:@[^\s/?#'\"@]*)*@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=][\w.~+/=-]{7,}")
#: ``NAME=VALUE`` and ``NAME: VALUE`` inside a word, such as a shell's command, the query of an address or a header.
_PAIR = re.compile(r"""([\w.-]*[A-Za-z])(=|["']?:\s+)("[^"]*"|'[^']*'|[^\s&;'",}]+)""")


def _names_secret(name: str) -> bool:
    """Return whether a value of this name is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    last = words[-1] if words else ""
    return last in _SECRETS or (last in ("key", "keys") and len(words) > 1 and words[-2] in _KEYS)


def _is_secret(name: str, value: str) -> bool:
    if not _names_secret(name) or _SWITCH.fullmatch(value):
        return False
    return not (_WORDS.findall(name)[-1].lower() == "token" and _MARK.fullmatch(value))


def redacted_text(text: str) -> str:
    """Return a text with the secrets in it hidden that can be told without knowing where words end."""

    def pair(match: re.Match[str]) -> str:
        name, between, value = match.groups()
        secret = _is_secret(name, value.strip("'\""))
        return f"{name}{between}{HIDDEN if secret else _PAIR.sub(pair, value)}"

    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    return _FORMS.sub(HIDDEN, _PAIR.sub(pair, text))


def redacted(words: Sequence[str]) -> list[str]:
    """Return the words of a command with every secret in them replaced by ``***``."""
    shown: list[str] = []
    name = ""
    for word in words:
        begin, equals, value = word.partition("=")
        if name and not word.startswith("-") and _is_secret(name, word):
            shown.append(HIDDEN)
        elif equals and re.fullmatch(r"[\w.+~/-]+", begin) and _is_secret(begin, value):
            shown.append(f"{begin}={HIDDEN}")
        else:
            shown.append(_inner_command_hidden(word))
        name = word if word.startswith("-") and not equals else ""
    return shown


def _inner_command_hidden(word: str) -> str:
    """Return a word that may itself be a command, such as that of ``bash -c``, with its secrets hidden."""
    text = redacted_text(word)
    if "\n" not in text and re.search(r"(?:^|\s)-\S", text):
        # --password VALUE: hidden in place, so that all else stays as it was written.
        text = re.sub(
            r"""((?:^|\s)(-{1,2}[\w.-]+)\s+)("[^"]*"|'[^']*'|[^\s;'"-][^\s;'"]*)""",
            lambda m: f"{m[1]}{HIDDEN}" if _is_secret(m[2], m[3].strip("'\"")) else m[0],
            text,
        )
    return text


def shell(words: Sequence[str]) -> str:
    """Return a command as a shell takes it, with its secrets hidden."""
    return shlex.join(redacted(words))
