"""Pictures of a report, one family per file: bars as SVG whose text stays text, dense timelines as PNG at double resolution."""

from nsysx.render.charts.canvas import Picture as Picture
from nsysx.render.charts.host_icicle import Part as Part
from nsysx.render.charts.host_icicle import icicle as icicle
from nsysx.render.charts.kernel_strips import strips as strips
from nsysx.render.charts.ledger_bars import ledger as ledger
from nsysx.render.charts.memory_lines import MemoryLine as MemoryLine
from nsysx.render.charts.memory_lines import memory as memory
from nsysx.render.charts.rank_bars import ranks as ranks
from nsysx.render.charts.step_bars import steps as steps
from nsysx.render.charts.timelines import timeline as timeline
