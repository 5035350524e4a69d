"""How fast a piece of GPU work could be: the bytes that it must move, the operations it must do, and the rates of the device.

The time at the limit is the longer of two: operations over the fastest product of their number format, and bytes over the memory
bandwidth (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009, https://doi.org/10.1145/1498765.1498785). Both are lower bounds: where
the sizes leave something open, the least is taken.
"""
