"""Finding an nsys that works, and what it is able to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nsysx.errors import EXIT_NOT_FOUND
from nsysx.recording.options import failed

#: Where NVIDIA's installers and the distributions put nsys.
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
GET_NSYS = (
    "Install Nsight Systems (part of the CUDA toolkit; on Debian `nsysx doctor --install-nsys` needs no root rights) "
    "or name it with --nsys PATH"
)


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that answers: its path, version, and the help texts that say what this version can do."""

    path: Path
    version: str
    profile_help: str = ""
    export_help: str = ""
    process_sampling: bool = False

    def profile_has(self, option: str) -> bool:
        """Say whether ``nsys profile`` of this version knows ``option``, as ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.profile_help) is not None

    def export_has(self, option: str) -> bool:
        """Say whether ``nsys export`` of this version knows ``option``, as ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.export_help) is not None


def user_folder() -> Path:
    """Return the folder into which ``nsysx doctor --install-nsys`` installs, and in which `find_nsys` looks."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path(os.path.expanduser("~")) / ".local" / "share"  # noqa: PTH111, PTH117
    return base / "nsysx" / "nsys"


def _own_places() -> list[Path]:
    """Return where an nsys of the user's own may lie; one that somebody else could have put there does not count."""
    folders = (user_folder(), Path.cwd() / ".tools" / "nsys", Path(__file__).parents[2] / ".tools" / "nsys")
    installed = [path for folder in folders for path in sorted(folder.glob("target-linux-*/nsys"))]
    return [path for path in installed if path.stat().st_uid in (os.getuid(), 0)]


def ask(command: Sequence[str | Path], timeout_s: float = 60) -> tuple[int, str]:
    """Return exit code and output of a helper command, its messages too when it failed; 127 when it does not start."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return EXIT_NOT_FOUND, str(error)
    said = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode, said.strip()


def version_of(nsys: Path) -> str:
    """Return the version that ``nsys --version`` names, "" when that is not a working nsys."""
    code, said = ask([nsys, "--version"])
    match = re.search(r"version (\d+(?:\.\d+)+)", said)
    return match.group(1) if match and code == 0 else ""


def importer_of(nsys: Path) -> Path | None:
    """Return the importer that an nsys at this path finds."""
    for path in (nsys, nsys.resolve()):
        if importer := next(path.parent.parent.glob("host-linux-*/QdstrmImporter"), None):
            return importer
    return None


def importer_fault(nsys: Path) -> str:
    """Return why the importer that belongs to ``nsys`` does not work, "" when it does or cannot be told.

    Without it a capture ends in a file that nothing reads, which must not be learnt after hours of training. Copies in
    Nsight Compute come without one that nsys finds; slim systems lack libraries of it.
    """
    for path in (nsys, nsys.resolve()):
        if path.parent.name.startswith("target-linux"):
            if importer := next(path.parent.parent.glob("host-linux-*/QdstrmImporter"), None):
                code, said = ask([importer, "--version"])
                return "" if code == 0 else f"its importer does not run ({said.splitlines()[-1] if said else code})"
            if path == nsys.resolve():
                hint = "; link both folders side by side as target-linux-x64 and host-linux-x64"
                aside = next(path.parent.parent.glob("linux-desktop-*/QdstrmImporter"), None)
                where = f"its importer lies in {aside.parent}, where it does not look{hint}" if aside else ""
                return where or f"no importer in {path.parent.parent}/host-linux-*"
    return ""


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def find_nsys(explicit: Path | None = None, places: Sequence[str] = NSYS_PLACES) -> Nsys:
    """Return the nsys to use: the named one, else that of PATH, else the newest that is installed. Raises NsysxError.

    Only one that works counts: CUDA puts a script named nsys into its bin folder even where Nsight Systems is not
    installed, and some copies lack their importer.
    """
    faults: list[str] = []

    def works(path: Path) -> str:
        version = version_of(path)
        fault = importer_fault(path) if version else "does not run as nsys" if path.exists() else "no such file"
        if fault:
            faults.append(f"{path}: {fault}")
        return "" if fault else version

    if explicit is not None:
        path = Path(shutil.which(explicit) or explicit)
        if version := works(path):
            return _with_abilities(path, version)
        raise failed(f"--nsys {faults[0]}", "nsys-broken", GET_NSYS)
    on_path = shutil.which("nsys")
    if on_path and (version := works(Path(on_path))):
        return _with_abilities(Path(on_path), version)
    installed = [path for pattern in places for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    versions = {path: works(path) for path in [*installed, *_own_places()]}
    usable = [path for path, version in versions.items() if version]
    if not usable:
        what = faults[0] if faults else "nsys is neither on PATH nor in NVIDIA's folders"
        raise failed(what, "nsys-missing", GET_NSYS)
    newest = max(usable, key=lambda path: _version_key(versions[path]))
    return _with_abilities(newest, versions[newest])


def _with_abilities(path: Path, version: str) -> Nsys:
    return Nsys(
        path=path,
        version=version,
        profile_help=ask([path, "profile", "--help"])[1],
        export_help=ask([path, "export", "--help"])[1],
    )


def with_sampling(nsys: Nsys) -> Nsys:
    """Return ``nsys`` knowing whether the system lets it sample one process tree (perf_event, seccomp)."""
    return replace(nsys, process_sampling="(process-tree): OK" in ask([nsys.path, "status", "-e"])[1])
