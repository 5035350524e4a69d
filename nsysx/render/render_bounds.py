"""The numbers that the room ``render`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- answer_text ----------------------------------------------------------------------------------------------------
#: Most changes that were tried for which a text has a line.
MOST_TRIED = 3
#: The longest answer in Markdown: what a ticket shows without scrolling.
MOST_MARKDOWN_LINES = 25
#: Letters of a change in one line of the list.
CHANGE_LETTERS = 130
#: Letters of the only change that the card shows whole.
CARD_LETTERS = 150
#: Letters of an entry of a terminal's legend that stays on one line. Chosen: "▄ other 547 us (0.8 %)"; longer ones whole cost lines.
LEGEND_WHOLE = 24

# ---- answer_words ---------------------------------------------------------------------------------------------------
#: Letters of a headline: two lines of the page.
HEADLINE_LETTERS = 125
#: A most factor of this many times the least says only that the step after the change is within its error of nothing; so does a step at
#: best that is the likely one divided by this.
MOST_OVER_LEAST = 10
#: Bounds of the step that leave the factor of a bound open by this much are told.
WIDE_FACTOR = 1.15
#: A step at best that is this near the likely one is no figure of its own.
CLOSE_SHARE = 0.95

# ---- brief ----------------------------------------------------------------------------------------------------------
#: Causes, warnings and reasons for what was not recorded where there is all the room. Chosen: an assistant reads the answer
#: whole.
BRIEF_CAUSES, BRIEF_CARE, BRIEF_NOT_RECORDED = 3, 3, 2
#: Letters of texts where there is all the room.
BRIEF_SENTENCE, BRIEF_WHAT, BRIEF_DO, BRIEF_CARE_LETTERS, BRIEF_REASON, BRIEF_PLACE = 240, 160, 240, 160, 120, 100
#: Letters of what is to be done for the causes after the first, beside their code and without: they are read once the first is gone.
LATER_DO_WITH_CODE, LATER_DO = 10, 90
#: Bytes of code to paste: a longer one stands in the insight alone. That of the first cause goes before words.
BRIEF_PASTE_BYTES, FIRST_PASTE_BYTES = 320, 420
#: Below this share of the room an answer names fewer causes.
LITTLE_ROOM = 0.3

# ---- charts/beside --------------------------------------------------------------------------------------------------
#: Seconds after which a process that gives no picture is given up. Chosen: the slowest picture seen takes 0.3 s.
DRAWING_PATIENCE_S = 20

# ---- charts/canvas --------------------------------------------------------------------------------------------------
#: A line of the legend that is thicker (CSS pixels) is drawn longer, so that its dashes are seen.
THICK_LINE = 1.7

# ---- charts/flame_graph ---------------------------------------------------------------------------------------------
#: Height of a row, and room above, below and at the sides (CSS pixels).
FLAME_ROW, FLAME_ABOVE, FLAME_BELOW, FLAME_SIDE = 24, 4, 40, 6
#: Most levels drawn, and the share of the whole below which a box can be seen no more.
FLAME_LEVELS, FLAME_LEAST = 24, 0.0005
#: The width of a letter (CSS pixels), and the fewest letters worth writing on a box.
FLAME_LETTER, FLAME_FEWEST = 5.9, 3

# ---- charts/host_icicle ---------------------------------------------------------------------------------------------
#: Height of a row, and room above, below and at the sides (CSS pixels).
ICICLE_ROW, ICICLE_ABOVE, ICICLE_BELOW, ICICLE_SIDE = 24, 8, 40, 6
#: The width of a letter (CSS pixels), and the fewest letters worth writing on a box.
ICICLE_LETTER, ICICLE_FEWEST = 5.7, 4
#: A box narrower than this cannot be seen and is only in the table (CSS pixels).
ICICLE_NARROWEST = 0.5

# ---- charts/kernel_strips -------------------------------------------------------------------------------------------
#: Height of a row and margin at the sides (CSS pixels). Names stand above their dots, so that a phone shows both.
STRIP_ROW, STRIP_SIDE = 46, 26
#: The length of the line that is drawn as a dot: not every reader of SVG draws one without any (CSS pixels).
STRIP_DOT = 0.02
#: The share of dots that may lie beyond the end of the axis. Chosen.
STRIP_BEYOND = 0.02

# ---- charts/ledger_bars ---------------------------------------------------------------------------------------------
#: Height of a bar with what is written above it, of the bar alone, and the place of its upper edge (CSS pixels).
LEDGER_ROW, LEDGER_BAR, LEDGER_TOP = 46.0, 22.6, 19.5

# ---- charts/memory_lines --------------------------------------------------------------------------------------------
#: More entries of the legend than these take a second line.
MEMORY_LEGEND = 5

# ---- charts/module_flame --------------------------------------------------------------------------------------------
#: Most levels drawn, and the share of the GPU work below which a module gets no box of its own: it is its caller's.
MODULE_LEVELS, MODULE_LEAST = 7, 0.004

# ---- charts/rank_bars -----------------------------------------------------------------------------------------------
#: Most ranks drawn as bars; more are drawn as a heat map.
RANK_BARS = 32
#: Height of a rank among bars and in the map (CSS pixels).
RANK_ROW, RANK_MAP_ROW = 24, 26
#: Shades in which the scale of the map is drawn.
RANK_SHADES = 64

# ---- charts/roofline_chart ------------------------------------------------------------------------------------------
#: Operators drawn, those whose names are written, and the smallest share of the step that is drawn.
ROOFLINE_MOST, ROOFLINE_NAMED, ROOFLINE_LEAST = 24, 12, 0.004
#: The area of a circle that would hold the whole step, and of the smallest one (square pixels).
ROOFLINE_AREA, ROOFLINE_SMALLEST = 9000.0, 12.0
#: Room that a letter and a line of its names take (pixels).
ROOFLINE_LETTER, ROOFLINE_LINE = 5.2, 12.0

# ---- charts/row_bars ------------------------------------------------------------------------------------------------
#: Height of a row, of its boxes, and of the room below (CSS pixels).
BARS_ROW, BARS_BAR, BARS_BELOW = 24, 17, 44
#: Where the lane of a row begins; what is left of it are label, value and share, which end there. Narrow pictures have them above.
BARS_LEFT, BARS_VALUE, BARS_SHARE, BARS_NARROW = 330, 62, 8, 600
#: Height of a row with its words above; the narrowest box that is seen (share of the scale).
BARS_TALL, BARS_LEAST = 38, 0.0015

# ---- charts/step_bars -----------------------------------------------------------------------------------------------
#: Most bars in the picture; more steps are shown as means of neighbors.
STEP_BARS = 160
#: End of the axis over the longest steady step: one warm-up step of seconds would flatten all others.
STEP_CUT = 2.2
#: Most letters of a name in the legend, and letters beyond which it takes a second line.
STEP_LETTERS, STEP_LINE = 24, 130
#: The room that a label needs (CSS pixels).
STEP_LABEL = 54
#: The room of so many steps is there for fewer: two steps are not two walls. Up to these each has its number.
FEW_STEPS = 10

# ---- charts/timelines -----------------------------------------------------------------------------------------------
#: Most arrows from a launch to its kernel; more would hide the lanes.
TIMELINE_ARROWS = 8
#: Height of a lane, of its boxes, and of a strip below the lanes with the room above it; room to the left of the lanes, to their
#: right, below them and above them, without marks (CSS pixels).
TIMELINE_ROW, TIMELINE_BOX, TIMELINE_DEEP, TIMELINE_LEFT, TIMELINE_RIGHT, TIMELINE_BELOW, TIMELINE_ABOVE = (
    30,
    21.6,
    54,
    176,
    12,
    68,
    16,
)

# ---- charts/wait_map ------------------------------------------------------------------------------------------------
#: Height of a rank, and room beside, above and below the map (CSS pixels); of more ranks the rows get lower.
WAIT_ROW, WAIT_LOWEST, WAIT_HIGH, WAIT_LEFT, WAIT_RIGHT, WAIT_ABOVE, WAIT_BELOW = 18, 5, 420, 70, 12, 8, 62

# ---- code -----------------------------------------------------------------------------------------------------------
#: Letters of a line of code that a page has room for where the whole of it stands, 1280 pixels wide.
PAGE_CODE = 112

# ---- compare_charts -------------------------------------------------------------------------------------------------
#: Rows of the waterfall between the two steps; the smaller parts share one more.
WATERFALL_ROWS = 8
#: Most captures and most steps of each that are drawn, thinned evenly; a step is so wide (percent of the row).
MOST_CAPTURES, MOST_CAPTURE_STEPS, CAPTURE_STEP = 24, 400, 0.35

# ---- compare_page ---------------------------------------------------------------------------------------------------
#: Parts of the difference that the first screen names.
SCREEN_PARTS = 4

# ---- compare_text ---------------------------------------------------------------------------------------------------
#: Rows of each short table on the terminal.
TERMINAL_PARTS, TERMINAL_ROWS, TERMINAL_WARNINGS = 7, 3, 3

# ---- csv_text -------------------------------------------------------------------------------------------------------
#: Common spreadsheets keep at most 32,767 characters in a cell.
LONGEST_CELL = 32_000

# ---- cut_timeline ---------------------------------------------------------------------------------------------------
#: Boxes of a lane of calls that are left when it is thinned.
THINNED_BOXES = 1500

# ---- facts ----------------------------------------------------------------------------------------------------------
#: Files and GPUs that are listed one by one; of more their number, the first and the last. Chosen: a host has 8 GPUs.
MOST_ALIKE_FACTS = 8

# ---- facts_line -----------------------------------------------------------------------------------------------------
#: What else a loop does is named from this share of it on. Its warm-up and the step that the end cuts are no news.
OTHER_WORK_NAMED = 0.1
#: Another mean is told if it is longer than a step by this share, and that of the steps that followed if it differs by as much.
MEAN_LONGER = 0.03
#: Steady steps whose longest is this many times their shortest are not told by their mean alone.
UNEQUAL_STEPS = 1.5
#: A mean of all steady steps that differs by this share from that of the steps in a row is told.
OTHER_MEAN = 0.01

# ---- first_screen ---------------------------------------------------------------------------------------------------
#: In CSS pixels: the widest bar on a 1280-pixel screen without and with labels on its left, the width of a letter, and a margin.
WIDEST_BAR, WIDEST_LABELLED, SCREEN_LETTER, SCREEN_MARGIN = 1120, 940, 7.2, 20
#: More bars than these are drawn lower, and only those that the headline speaks of have a legend.
MANY_BARS = 4
#: A part of a bar below this share of it is not named: it would read "<0.1 %".
LEGEND_LEAST = 0.0005
#: Letters of a line of code that the card of what to do has room for beside the button that copies them, and its lines.
SCREEN_CODE, SCREEN_CODE_LINES = 68, 12
#: Letters of what to do for which the card has room beside the two others.
SCREEN_DO = 480

# ---- html_page ------------------------------------------------------------------------------------------------------
#: Rows of a table and of evidence, ledgers, and checks that passed that are seen at once; the others open with a button.
PAGE_ROWS, PAGE_EVIDENCE, PAGE_LEDGERS, PAGE_PASSED = 5, 2, 2, 1
#: Lines of the list of what to do that are seen at once, those of one cause among them; the others open with a button.
PAGE_TODO = 5
#: Rows of a table for experts, of one on the page of a job, of one whose picture shows all that it holds, words explained; names of
#: what was not found and lines of the profiler.
PAGE_EXPERT_ROWS, PAGE_JOB_ROWS, PAGE_PICTURED_ROWS, PAGE_WORDS, PAGE_CLEAR = 4, 3, 2, 4, 4
#: Columns of a table, the most important first; CSV and JSON have all.
PAGE_COLUMNS = 9
#: Ticket systems take no larger attachment, and no reader wants one (bytes).
MOST_PAGE_BYTES = 8_000_000
#: Rows below which a page that is too large is not made again with fewer.
FEWEST_TOP = 5

# ---- insight --------------------------------------------------------------------------------------------------------
#: Rows of evidence, and remedies or changes that were tried, where there is all the room. Chosen.
INSIGHT_EVIDENCE, INSIGHT_OTHERS = 5, 4
#: Letters of texts where there is all the room; bytes of code.
INSIGHT_DETAIL, INSIGHT_DO, INSIGHT_TEXT, INSIGHT_PASTE = 600, 400, 200, 900

# ---- invocation -----------------------------------------------------------------------------------------------------
#: If more files than this were given, commands name their folder where it holds these reports and no others.
MOST_FILES = 4

# ---- labels ---------------------------------------------------------------------------------------------------------
#: A spread from here on reads better as so many times the median than in per cent; below the other, digits say nothing.
SPREAD_TIMES, SPREAD_LEAST = 10, 0.01

# ---- live_timeline --------------------------------------------------------------------------------------------------
#: The page with this data stays below this size (bytes); pictures whose data does not fit are stills only.
LIVE_PAGE_BYTES = 985_000
#: Letters of a name in the data of a picture. Chosen: the pointer shows them in one or two lines.
LIVE_LABEL = 80
#: A color that fills less of the window has no line in the legend (share); the pointer still names its boxes.
LIVE_LEAST = 0.002

# ---- markdown -------------------------------------------------------------------------------------------------------
#: Most words between the brackets of one name.
MARKDOWN_NAME = 24

# ---- safe_text ------------------------------------------------------------------------------------------------------
#: Combining marks behind one letter. Chosen: no script needs more, and hundreds would cover the lines around.
MOST_MARKS = 4

# ---- small_json -----------------------------------------------------------------------------------------------------
#: The most that one answer is long (bytes of UTF-8).
MOST_JSON_BYTES = 2500

# ---- table_json -----------------------------------------------------------------------------------------------------
#: Columns that are shown unless others are asked for.
TABLE_COLUMNS = 8
#: Letters of a text in a row. Chosen: a name of a kernel stays recognizable.
TABLE_TEXT = 90

# ---- terminal -------------------------------------------------------------------------------------------------------
#: Columns of a terminal that a name is given at least. Chosen.
LEAST_NAME = 16
#: A place in code needs the name of its file and its line.
LEAST_PLACE = 20
#: Columns beyond which no text is set: longer lines are hard to read. Chosen.
MOST_PROSE = 100

# ---- terminal_answer ------------------------------------------------------------------------------------------------
#: Parts of a bar that are named; the page names the rest.
TERMINAL_NAMED = 4
#: Columns beyond which the answer gets no wider: longer lines are hard to read. Chosen.
TERMINAL_WIDEST = 100
#: Lines of the whole answer: it stays on a screen. Chosen.
TERMINAL_LINES = 25
#: A reason that is cut at the end of a clause keeps at least this many letters.
LEAST_REASON = 24

# ---- top_kernel -----------------------------------------------------------------------------------------------------
#: A kernel with less of the kernel time explains nothing (share).
TOP_KERNEL_LEAST = 0.05

# ---- view -----------------------------------------------------------------------------------------------------------
#: Messages of the profiler that are shown.
MOST_MESSAGES = 20
