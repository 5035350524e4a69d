"""Starts the probe's bootstrap. Python imports this file at start-up, because its folder is on PYTHONPATH.

Any Python may import it, also an old version in a child process. So this file runs on all of them, and does nothing on those that
the probe does not support. Then it runs the ``sitecustomize`` that Python would have found without it. ``NSYSX_PROBE=0`` turns the
probe off.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - there may be no pathlib

if sys.version_info >= (3, 9):  # noqa: UP036 - see above
    # This folder is on the program's path, not on mypy's. The name is one that nobody finds who looks for nsysx.
    import nsysx_probe.bootstrap as _bootstrap  # type: ignore[import-not-found]

    _bootstrap.start()
    _bootstrap.next_sitecustomize(_here)
else:
    _path = sys.path[:]
    _ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [p for p in _path if os.path.abspath(p) != _here]  # noqa: PTH100
    try:
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules["sitecustomize"] = _ours
        if getattr(error, "name", "sitecustomize") != "sitecustomize":  # the user's file exists but lacks something
            raise
    finally:
        sys.path[:] = _path
