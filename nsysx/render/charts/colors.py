"""Colors with a meaning: one color is one kind of work in every picture, and every color has its name beside it.

The palette is Okabe and Ito's, which color-blind readers can tell apart.
"""

from __future__ import annotations

KIND_COLORS = {
    "compute": "#009E73",
    "comm": "#56B4E9",
    "copy": "#E69F00",
    "memset": "#F0E442",
    "launch": "#0072B2",
    "graph_launch": "#0072B2",
    "sync": "#D55E00",
    "alloc": "#CC79A7",
    "free": "#CC79A7",
    "host_alloc": "#CC79A7",
    "load": "#4D4D4D",
    "event": "#999999",
    "other": "#999999",
    "data": "#B58900",
    "profiler": "#BFBFBF",
    "dependency": "#7E7EB8",
    "gap": "#009E73",
    "outside": "#D9D9D9",
    "idle": "#F0F0F0",
}
#: Modules in a bar, and kinds of work in another: none of these is a kind above, and greens are parts of what the GPU computes.
MODULE_COLORS = ("#5B4FA8", "#DDCC77", "#882255", "#B8B0EC", "#999933", "#A05A2C", "#E7B5C9")
WORK_COLORS = ("#006B4F", "#A3DFCB", "#5F8F2F", "#C5E37A", "#DDF3EB", "#2F6B75")
KIND_NAMES = {
    "compute": "compute",
    "comm": "communication",
    "copy": "copy",
    "memset": "memset",
    "launch": "launch",
    "graph_launch": "graph launch",
    "sync": "sync",
    "alloc": "alloc and free",
    "free": "alloc and free",
    "host_alloc": "alloc and free",
    "load": "loading code",
    "event": "other CUDA call",
    "other": "other CUDA call",
}
#: Phases are pale, so that they are never taken for a kind of work; their names are written on them.
PHASE_COLORS = {
    "data": "#E8D9A0",
    "h2d": "#F6D9A8",
    "forward": "#BBD7EE",
    "loss": "#D5CBE8",
    "backward": "#F3C6B4",
    "clip": "#E0E0E0",
    "optimizer": "#BFE3D3",
    "zero_grad": "#EDEDED",
    "evaluation": "#F2CFE2",
}
_PALE = ("#CFE2CF", "#E6D3C5", "#CDD9E5", "#E9E3C8", "#DCCFE0")
INK = "#1b1b1b"
NEUTRAL = "#6b6b6b"
#: The page behind a picture, and a shade of it; ``canvas`` makes both dark on a dark page.
PAPER, PAPER_SHADE = "#fdfdfd", "#ececec"


def luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb`` as WCAG defines it."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(color: str) -> str:
    """Return black or white, whichever is easier to read on ``color``."""
    light = luminance(color)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def mix(color: str, share: float) -> str:
    """Return ``color`` mixed with white; ``share`` of it stays."""
    return "#" + "".join(f"{round(255 - (255 - int(color[i : i + 2], 16)) * share):02x}" for i in (1, 3, 5))


#: Boxes of a flame graph on a white page and on a dark one, by how much of their time is their own: none, a quarter, ..., all.
FLAME = tuple(mix(KIND_COLORS["copy"], 0.14 + 0.14 * n) for n in range(5))
FLAME_DARK = ("#3b2f16", "#4b3a14", "#5c4513", "#6c5011", "#7d5b0e")
#: Boxes of the map of waiting, likewise: what stands out most from the page is the longest. None is the color of a kind of work.
WAITING = tuple(mix(KIND_COLORS["launch"], 0.196 * n) for n in range(1, 6))
WAITING_DARK = ("#2b4a60", "#2f658b", "#3a82b5", "#56a1d6", "#8cc9f2")


def shade(color: str) -> str:
    """Return ``color`` a little darker, for borders that are not mistaken for gaps."""
    return "#" + "".join(f"{round(int(color[i : i + 2], 16) * 0.8):02x}" for i in (1, 3, 5))


def phase_color(name: str, seen: dict[str, str]) -> str:
    """Return the color of a phase; the user's own phases get colors in order of appearance."""
    if name in PHASE_COLORS:
        return PHASE_COLORS[name]
    return seen.setdefault(name, _PALE[len(seen) % len(_PALE)])
