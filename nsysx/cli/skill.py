"""``nsysx skill``: how an agent works with nsysx, as a skill: SKILL.md and two references."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from nsysx.cli.command_output import emit, wrote
from nsysx.cli.declared_options import with_options
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("--write .claude/skills", "write .claude/skills/nsysx/SKILL.md and its references"),
    ("", "print SKILL.md"),
)

#: The files of the skill, in the folder that has its name.
SKILL_FILES = ("SKILL.md", "references/reading.md", "references/verifying.md")


@dataclass(frozen=True)
class SkillOutputs:
    """Where the skill is written."""

    write: Annotated[str | None, Option("Write the skill into the folder DIR/nsysx.", "DIR", typed_only=True)] = None
    force: Annotated[bool, Option("Overwrite its files.", names=("--force", "-f"), typed_only=True)] = False


def text_of(name: str) -> str:
    """Return one file of the skill."""
    return (files("nsysx") / "skill").joinpath(*name.split("/")).read_text(encoding="utf-8")


@with_options
def skill(*, wanted: SkillOutputs) -> None:
    """Write the skill for agents: how to record, read, try, compare and check, and what not to conclude."""
    if wanted.write is None:
        emit(text_of("SKILL.md"))
        return
    from nsysx import outputs

    folder = Path(wanted.write) / "nsysx"
    contents: dict[Path, outputs.Content] = {folder / name: text_of(name) for name in SKILL_FILES}
    for path in contents:
        if not wanted.force and path.exists():
            hint = "Use --force (-f) or another folder"
            raise NsysxError(f"{path}: exists already", slug="output-exists", hint=hint, exit_code=EXIT_USAGE)
    try:
        (folder / "references").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NsysxError(
            f"{folder}: cannot be made ({error.strerror})", slug="output-folder", hint="Choose another folder",
            exit_code=EXIT_USAGE,
        ) from None  # fmt: skip
    outputs.write_files(contents, force=wanted.force)
    for path in contents:
        wrote(path)
