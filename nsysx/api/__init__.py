"""The library: a report as an object with records, frames, pictures and questions. ``import nsysx`` gives all of it.

>>> import nsysx
>>> s = nsysx.report("sample_reports/masked_nonzero.sqlite.xz")
>>> s.verdict.code
'gpu_bound'
>>> s.kernels.columns[:3]
['name', 'family', 'count']
"""

from nsysx.api.compared import Compared as Compared
from nsysx.api.compared import compare as compare
from nsysx.api.report_object import Report as Report
from nsysx.api.report_object import WhatIf as WhatIf
from nsysx.api.report_object import report as report
from nsysx.events.profile import NotRecorded as NotRecorded
