"""Finds an nsys that works, and what it can do."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysx.errors import EXIT_NOT_FOUND
from nsysx.outputs import working_folder_is_gone
from nsysx.recording.process_activity import SessionActivity, activity_of_session
from nsysx.recording.recording_bounds import HELPER_IDLE_S, HELPER_LOOK_S
from nsysx.recording.run_options import failed

#: Where NVIDIA's installers and the Linux distributions put nsys.
NSYS_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/cuda*/nsight-systems-*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
#: What is said of a helper of which no process does anything.
IDLE = "did nothing"
GET_NSYS = (
    "Install Nsight Systems (part of the CUDA toolkit; on Debian `nsysx doctor --install-nsys` needs no root rights) "
    "or name it with --nsys PATH"
)


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that runs: its path, its version, and its help texts, which tell what this version can do."""

    path: Path
    version: str
    profile_help: str = ""
    export_help: str = ""

    def profile_has(self, option: str) -> bool:
        """Return whether ``nsys profile`` of this version knows ``option``, spelled ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.profile_help) is not None

    def export_has(self, option: str) -> bool:
        """Return whether ``nsys export`` of this version knows ``option``, spelled ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.export_help) is not None


def whole(path: str | Path) -> Path:
    """Return a path that means the same file wherever it is used; ``./nsys`` alone would be looked up on PATH as ``nsys``."""
    return Path(path) if working_folder_is_gone() else Path(path).absolute()


def a_working_folder() -> str | None:
    """Return where nsys can start: here (None), or / where the folder has been deleted, in which nsys starts nothing."""
    return "/" if working_folder_is_gone() else None


def user_folder() -> Path:
    """Return the folder where ``nsysx doctor --install-nsys`` installs nsys and `find_nsys` looks for it."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path(os.path.expanduser("~")) / ".local" / "share"  # noqa: PTH111, PTH117
    return base / "nsysx" / "nsys"


def _installed_by_user() -> list[Path]:
    """Return every nsys that the user installed; one that belongs to another user, except root, does not count."""
    here = [] if working_folder_is_gone() else [Path.cwd() / ".tools" / "nsys"]
    folders = (user_folder(), *here, Path(__file__).parents[2] / ".tools" / "nsys")
    installed = [path for folder in folders for path in sorted(folder.glob("target-linux-*/nsys"))]
    return [path for path in installed if path.stat().st_uid in (os.getuid(), 0)]


def ask(command: Sequence[str | Path], timeout_s: float = 60) -> tuple[int, str]:
    """Return exit code and stdout of a helper command, with stderr if it failed; 127 if it did not start or came to no end.

    It comes to no end if it takes ``timeout_s``, or if none of its processes computes or waits for a disk for a few seconds.
    """
    began = active = time.monotonic()
    before: SessionActivity | None = None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True, cwd=a_working_folder(),
        )  # fmt: skip
    except OSError as error:
        return EXIT_NOT_FOUND, str(error)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=HELPER_LOOK_S)
            output = out if process.returncode == 0 else out + err
            return process.returncode, output.strip()
        now, activity = time.monotonic(), activity_of_session(process.pid)
        if activity.working or activity != before:
            active, before = now, activity
        if now - active > HELPER_IDLE_S or now - began > timeout_s:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return (
                EXIT_NOT_FOUND,
                f"{command[0]} {IDLE} for {HELPER_IDLE_S:.0f} s" if now - active > HELPER_IDLE_S else "no answer",
            )


def asked_version(nsys: Path) -> tuple[str, str]:
    """Return the version that ``nsys --version`` prints, or "" and why if it hangs, or "" twice if this is not an nsys."""
    code, output = ask([nsys, "--version"])
    match = re.search(r"version (\d+(?:\.\d+)+)", output)
    return (
        (match.group(1), "")
        if match and code == 0
        else ("", (", it hangs" if code == EXIT_NOT_FOUND and IDLE in output else ""))
    )


def version_of(nsys: Path) -> str:
    """Return the version that ``nsys --version`` prints, or "" if this is not a working nsys."""
    return asked_version(nsys)[0]


def importer_of(nsys: Path) -> Path | None:
    """Return the importer that an nsys at this path would find, None if there is none."""
    for path in (nsys, nsys.resolve()):
        if importer := next(path.parent.parent.glob("host-linux-*/QdstrmImporter"), None):
            return importer
    return None


def importer_fault(nsys: Path) -> str:
    """Return why the importer of this ``nsys`` does not work, or "" if it works or this cannot be checked.

    Without an importer, a capture ends in a file that nothing can read, and the user must not learn that after hours of training.
    The nsys inside Nsight Compute does not find its importer, and slim systems lack libraries that the importer needs.
    """
    for path in (nsys, nsys.resolve()):
        if path.parent.name.startswith("target-linux"):
            if importer := next(path.parent.parent.glob("host-linux-*/QdstrmImporter"), None):
                code, output = ask([importer, "--version"])
                return "" if code == 0 else f"its importer does not run ({output.splitlines()[-1] if output else code})"
            if path == nsys.resolve():
                hint = "; link both folders side by side as target-linux-x64 and host-linux-x64"
                aside = next(path.parent.parent.glob("linux-desktop-*/QdstrmImporter"), None)
                where = f"its importer is in {aside.parent}, where nsys does not look{hint}" if aside else ""
                return where or f"no importer in {path.parent.parent}/host-linux-*"
    return ""


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``2025.3.1``, to compare it with others."""
    return tuple(int(part) for part in version.split("."))


def find_nsys(explicit: Path | None = None, places: Sequence[str] = NSYS_PLACES) -> Nsys:
    """Return the nsys to use: ``explicit``, else the one on PATH, else the newest installed. Raises NsysxError if none works.

    Only an nsys that works counts: CUDA puts a script named nsys into its bin folder even where Nsight Systems is not
    installed, and some copies lack their importer.
    """
    faults: list[str] = []

    def works(path: Path) -> str:
        version, answer = asked_version(path)
        fault = (
            importer_fault(path) if version else f"does not run as nsys{answer}" if path.exists() else "no such file"
        )
        if fault:
            faults.append(f"{path}: {fault}")
        return "" if fault else version

    if explicit is not None:
        named = explicit.expanduser()  # a path first, a name on PATH second: ./nsys is the one in this folder
        path = whole(named if named.is_file() else shutil.which(explicit) or named)
        if version := works(path):
            return _with_help(path, version)
        raise failed(f"--nsys {faults[0]}", "nsys-broken", GET_NSYS)
    on_path = shutil.which("nsys")
    if on_path and (version := works(whole(on_path))):
        return _with_help(whole(on_path), version)
    installed = [path for pattern in places for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    versions = {path: works(path) for path in [*installed, *_installed_by_user()]}
    usable = [path for path, version in versions.items() if version]
    if not usable:
        what = faults[0] if faults else "nsys is neither on PATH nor in NVIDIA's folders"
        raise failed(what, "nsys-missing", GET_NSYS)
    newest = max(usable, key=lambda path: version_key(versions[path]))
    return _with_help(newest, versions[newest])


def _with_help(path: Path, version: str) -> Nsys:
    return Nsys(
        path=path,
        version=version,
        profile_help=ask([path, "profile", "--help"])[1],
        export_help=ask([path, "export", "--help"])[1],
    )
