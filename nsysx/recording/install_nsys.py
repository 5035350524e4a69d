"""Installs Nsight Systems (the command line and its importer) into a folder, without root rights.

Debian packages Nsight Systems 2023.4 in trixie's non-free component. The packages come from the mirror that this machine's apt
uses, and apt itself checks them against Debian's archive keys. The system is not changed, and installing twice does no harm.

``python -m nsysx.recording.install_nsys [--to DIR]`` prints the path of nsys as its last line. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from nsysx.errors import NsysxError
from nsysx.recording.find_nsys import Nsys, importer_fault, user_folder, version_of
from nsysx.recording.machine_checks import records
from nsysx.recording.recording_bounds import DOWNLOAD_S
from nsysx.recording.run_options import failed

_PACKAGES = ("nsight-systems", "nsight-systems-target", "libssh-4")
#: Packages of libraries that the importer needs and a slim system may lack. Two have other names from Debian 13 on.
_LIBRARIES = (
    *("libpfm4", "libelf1", "libelf1t64", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0"),
    *("libcom-err2", "libkeyutils1", "libssl3", "libssl3t64", "zlib1g"),
)
_KEYS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
_RELEASE = "trixie"
_ELSEWHERE = "On other systems install Nsight Systems from NVIDIA: it is part of the CUDA toolkit"


def _fail(message: str, hint: str = "") -> NsysxError:
    return failed(message, "install-nsys", hint)


def _call(words: Sequence[str | Path], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end. Raises NsysxError if it does not start or does not end in time."""
    try:
        return subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _fail(str(error)) from None


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    return " / ".join(line.strip() for line in (done.stdout + done.stderr).splitlines()[-3:] if line.strip())


def works(folder: Path, python: str) -> str:
    """Return "" if the nsys in ``folder`` records, imports and exports here, else what does not work."""
    nsys = folder / "target-linux-x64" / "nsys"
    version = version_of(nsys)
    if not version:
        return f"{nsys} does not run"
    if fault := importer_fault(nsys):
        return fault
    failures = [record for record in records(Nsys(nsys, version), python) if record.status == "fail"]
    return failures[0].detail if failures else ""


# --- where from -------------------------------------------------------------------------------------------------------


def mirror_of(targets: str, uris: str) -> tuple[str, str] | None:
    """Return Debian mirror and release: from the package lists that apt has, else from those that it would fetch.

    ``targets`` is the output of ``apt-get indextargets``, with origin, address and release on each line; ``uris`` that of
    ``apt-get update --print-uris``. None if neither names a Debian mirror.
    """
    for line in targets.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "Debian" and re.fullmatch(r"[^-/]+", words[2]):
            return words[1], words[2]
    match = re.search(r"^'(\S+/debian/?)/*dists/([a-z]+)/InRelease'", uris, re.MULTILINE)
    return (match[1], match[2]) if match else None


def _mirror() -> tuple[str, str]:
    targets = _call(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(RELEASE)", "Created-By: Packages"])
    mirror = mirror_of(targets.stdout, "") or mirror_of("", _call(["apt-get", "update", "--print-uris"]).stdout)
    if mirror is None:
        raise _fail("found no Debian mirror in this machine's apt sources", _ELSEWHERE)
    return mirror


class _Apt:
    """apt with its own package lists and state, on top of the machine's configuration (which may set a proxy)."""

    def __init__(self, work: Path) -> None:
        self.debs, self.root = work / "debs", work / "root"
        for folder in ("lists/partial", "cache/archives/partial", "debs", "root"):
            (work / folder).mkdir(parents=True)
        keys = next((key for key in _KEYS if os.access(key, os.R_OK)), None)
        if keys is None:
            raise _fail("no Debian archive keys", "Install the package debian-archive-keyring")
        mirror, self.release = _mirror()
        sources = work / "sources.list"
        lines = (f"{mirror} {_RELEASE} non-free", f"{mirror} {self.release} main")
        sources.write_text("".join(f"deb [signed-by={keys}] {line}\n" for line in lines))
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "-",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "-",
            "Dir::State::Lists": work / "lists",
            "Dir::State::Status": "/dev/null",
            "Dir::Cache": work / "cache",
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "root",
            "APT::Architectures": "amd64",
        }
        self._words = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]

    def update(self) -> None:
        """Read the package lists. Raises NsysxError."""
        if (done := _call([*self._words, "update"])).returncode:
            raise _fail(f"could not read the package lists: {_last_lines(done)}")

    def unpack(self, packages: Sequence[str]) -> str:
        """Download and unpack ``packages``; return "" or why that failed."""
        done = _call([*self._words, "download", *packages], self.debs)
        for deb in self.debs.glob("*.deb"):
            if _call(["dpkg-deb", "-x", deb, self.root]).returncode:
                return f"could not unpack {deb.name}"
            deb.unlink()
        return _last_lines(done) if done.returncode else ""


# --- into the folder --------------------------------------------------------------------------------------------------


def _place(root: Path, to: Path) -> None:
    """Move both halves into ``to``, beside each other: nsys looks for its importer in ../host-linux-x64."""
    halves = {
        "target-linux-x64": root / "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64",
        "host-linux-x64": root / "usr/lib/nsight-systems/host-linux-x64",
    }
    to.mkdir(parents=True, exist_ok=True)
    for name, source in halves.items():
        if (to / name).exists():
            shutil.rmtree(to / name)
        shutil.move(source, to / name)
    # `nsys stats` and `nsys analyze` look for these modules beside the importer; the packages put them into the other half.
    beside = to / "host-linux-x64/python/lib"
    for module in (to / "target-linux-x64/python/lib").glob("*.py"):
        if beside.is_dir() and not (beside / module.name).exists():
            shutil.copy(module, beside)
    for library in (root / "usr/lib/x86_64-linux-gnu").glob("libssh.so.4*"):
        beside = to / "host-linux-x64" / library.name
        beside.unlink(missing_ok=True)
        shutil.copy(library, beside, follow_symlinks=False)


def _missing(to: Path) -> set[str]:
    output = _call(["ldd", to / "host-linux-x64/QdstrmImporter", to / "target-linux-x64/nsys"]).stdout
    return {line.split()[0] for line in output.splitlines() if "not found" in line}


def _add_libraries(apt: _Apt, to: Path) -> None:
    """Put the libraries that the machine lacks beside the importer, which looks there first."""
    if not _missing(to):
        return
    for package in _LIBRARIES:  # apt gets none of several if it does not have one of them
        apt.unpack([package])
    for _ in range(2):  # a library may need another one
        for name in _missing(to):
            if library := next(apt.root.rglob(name), None):
                for half in ("host", "target"):
                    shutil.copy(library, to / f"{half}-linux-x64" / name)
    if left := _missing(to):
        names = " ".join(sorted(left))
        raise _fail(f"missing libraries: {names}", "Install them with your package manager, then run this again")


def install(to: Path, say: Callable[[str], object], python: str = sys.executable) -> Path:
    """Install nsys into ``to``, unless one already works there, and return its path. Raises NsysxError."""
    to = to.absolute()
    nsys = to / "target-linux-x64" / "nsys"
    if re.search(r"\s", str(to)):
        raise _fail(f"{to}: nsys 2023.4 does not run from a folder with a space in its name")
    if not works(to, python):
        say("nsys is already installed and works")
        return nsys
    # Debian's packages need its tools and amd64.
    for tool in ("apt-get", "dpkg", "dpkg-deb", "ldd"):
        if shutil.which(tool) is None:
            raise _fail(f"needs Debian's {tool}", _ELSEWHERE)
    if (machine := _call(["dpkg", "--print-architecture"]).stdout.strip()) != "amd64":
        raise _fail(f"Debian packages Nsight Systems for amd64 only, this is {machine}", _ELSEWHERE)
    with tempfile.TemporaryDirectory(prefix="nsysx-install-") as name:
        apt = _Apt(Path(name))
        say(f"reading the package lists of {apt.release} and {_RELEASE}")
        apt.update()
        say("downloading about 190 MB, 642 MB on disk")
        if fault := apt.unpack(_PACKAGES):
            raise _fail(f"could not get the packages: {fault}")
        try:
            _place(apt.root, to)
        except OSError as error:
            raise _fail(f"cannot write into {to}: {error}") from None
        _add_libraries(apt, to)
    if fault := works(to, python):
        raise _fail(f"nsys is unpacked in {to} but does not record: {fault}")
    say(f"nsys {version_of(nsys)} works")
    return nsys


def main(argv: Sequence[str]) -> int:
    """Install into ``--to`` and print the path of nsys; return the exit code."""
    parser = argparse.ArgumentParser(prog="install_nsys", description="Install Nsight Systems without root rights.")
    parser.add_argument("--to", type=Path, default=user_folder(), metavar="DIR", help="default: %(default)s")
    wanted = parser.parse_args(argv)
    try:
        nsys = install(wanted.to, lambda line: print(f"install_nsys: {line}", file=sys.stderr))  # noqa: T201
    except NsysxError as error:
        print(f"install_nsys: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(nsys)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
