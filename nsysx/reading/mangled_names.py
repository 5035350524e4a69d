"""Names of kernels as the compiler made them: Nsight Compute finds a kernel by these without doubt."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from nsysx.reading import as_sqlite, opening

_QUERY = """
SELECT DISTINCT d.value, m.value FROM CUPTI_ACTIVITY_KIND_KERNEL
JOIN StringIds d ON d.id = demangledName JOIN StringIds m ON m.id = mangledName
"""


def mangled_names(path: Path) -> dict[str, str]:
    """Return demangled -> mangled name of the kernels of a report; empty where it holds none. Errors: NsysxError, exit code 3."""
    path = path if path.name else opening.real(path)
    with (
        opening.sqlite_errors(path),
        as_sqlite.opened(path, None, None) as database,
        closing(opening.connect(database)) as connection,
    ):
        columns = {row[1] for row in connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        if not {"demangledName", "mangledName"} <= columns:
            return {}
        return {str(name): str(mangled) for name, mangled in connection.execute(_QUERY)}
