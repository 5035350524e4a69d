"""Types of the package itself. What is loaded later at run time is imported here."""

from contextlib import _GeneratorContextManager

from nsysx.api import NotRecorded as NotRecorded
from nsysx.api import compare as compare
from nsysx.api import report as report
from nsysx.errors import NsysxError as NsysxError

__version__: str

def step() -> None: ...
def range(name: str) -> _GeneratorContextManager[None, None, None]: ...
def capture() -> _GeneratorContextManager[None, None, None]: ...
