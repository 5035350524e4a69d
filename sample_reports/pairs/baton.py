"""Run two sides of a program, before a change and after it, in one process: blocks of steps in turn, no profiler.

    python sample_reports/pairs/language_model.py optimizer --bare               one JSON line: the step of each side
    python sample_reports/pairs/language_model.py optimizer --side before        that side alone, to be recorded

A host's speed drifts by a third from process to process, and within seconds: only blocks in turn tell a small change from that.
Each side is an ordinary loop in a thread of its own; one of them runs, the other waits for the baton.
"""

import argparse
import json
import statistics
import threading
import time

import torch

SIDES = ("before", "after")
#: Blocks of each side that are thrown away: they build the model, compile and fill caches.
WARM_UP = 2


class Baton:
    """Lets the sides run in turn and keeps the time of each block of ``block`` steps (s)."""

    def __init__(self, block, blocks):
        self.block, self.blocks = block, blocks
        self.turn = threading.Condition()
        self.runs = SIDES[0]
        self.left = set(SIDES)
        self.steps = dict.fromkeys(SIDES, 0)
        self.began = dict.fromkeys(SIDES, 0.0)
        self.took = {side: [] for side in SIDES}

    def tick(self, side):
        """Say that ``side`` made a step; return when it may make another."""
        self.steps[side] += 1
        if self.steps[side] % self.block == 0:
            synchronize()
            self.took[side].append((time.perf_counter() - self.began[side]) / self.block)
            self.hand_over(side)
            self.wait(side)

    def wait(self, side):
        with self.turn:
            self.turn.wait_for(lambda: self.runs == side)
        synchronize()
        self.began[side] = time.perf_counter()

    def hand_over(self, side):
        other = SIDES[1 - SIDES.index(side)]
        with self.turn:
            self.runs = other if other in self.left else side
            self.turn.notify_all()

    def run(self, side, program):
        self.wait(side)
        try:
            program(side, self.block * self.blocks, lambda: self.tick(side))
        finally:
            self.left.discard(side)
            self.hand_over(side)


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def bare(program, block, blocks):
    """Return the step of each side in ms, the median of its blocks and their quartiles, and what part of it the change saves.

    That is told block by block: each one after the change is held against its neighbours before it, and the median counts. So a
    host that changes its speed within seconds is in both.
    """
    baton = Baton(block, blocks)
    threads = [threading.Thread(target=baton.run, args=(side, program)) for side in SIDES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {}
    for side in SIDES:
        ms = [1e3 * s for s in baton.took[side][WARM_UP:]]
        low, _, high = statistics.quantiles(ms, n=4)
        told |= {
            f"{side}_ms": round(statistics.median(ms), 4),
            f"{side}_low_ms": round(low, 4),
            f"{side}_high_ms": round(high, 4),
        }
    before, after = (baton.took[side][WARM_UP:] for side in SIDES)
    # The sides take turns, before first: a block after the change lies between two before it.
    saved = [1 - 2 * a / (b + c) for a, b, c in zip(after, before, before[1:], strict=False)]
    low, middle, high = statistics.quantiles(saved, n=4)
    told |= {"saved": round(middle, 5), "saved_low": round(low, 5), "saved_high": round(high, 5)}
    return told | {"block": block, "blocks": blocks - WARM_UP}


def main(programs):
    """Run one of ``programs``, name -> function(side, steps, tick), as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=programs)
    parser.add_argument("--bare", action="store_true", help="both sides in turn, timed")
    parser.add_argument("--side", choices=SIDES, default=SIDES[0])
    parser.add_argument("--steps", type=int, default=20, help="steps of the one side")
    parser.add_argument("--block", type=int, default=5, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=26, help="blocks of each side, two to warm up among them")
    args = parser.parse_args()
    program = programs[args.program]
    if not args.bare:
        program(args.side, args.steps, lambda: None)
        synchronize()
        return
    print(json.dumps({"pair": args.program} | bare(program, args.block, args.blocks)), flush=True)
