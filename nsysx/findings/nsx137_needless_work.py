"""NSX137 needless-work: work whose result is there already, or that nothing reads.

What it means
    A network that is called twice on the same input in one step (for the loss and for a metric, by a helper that does not hand its
    result on) computes the same twice, one that is called and differentiated anew for each second derivative as often as that.
    Parametrizations (weight norm) make each weight in each call of its layer.
    Layers that each make the same of what all are given (neighbors of the points, a mask) compute it
    once for each. A step may also convert a tensor again: autocast keeps the weights that it has converted until the outermost
    ``autocast`` ends, so one that is entered anew in each round of a loop converts all of them in each. What is made only of what no
    step changes (masks, grids, filters, tables of positions, neighbors of fixed points, the order of edges, what a frozen network says
    of a fixed input, which rows of a graph a rank wants from which other one) comes out the same in each step, and in each
    pass over a batch what a frozen network says of it. Second outputs, auxiliary
    heads and averages of attention weights are computed even where nobody looks at them; metrics are needed when they are shown, and
    statistics for a log in the steps that write it, also where a sum over the steps holds them until then.
    Heads whose results are multiplied by zero run for their parameters' sake alone.
    A graph is run backward for each of several losses whose gradients add up, for norms of gradients, for each input that is asked for, or
    in each step for a penalty.
    A network runs to its end although only what an inner layer makes is read (a hook, one of ``hidden_states``).
    Where samples of all ranks are gathered for a loss over pairs, each rank needs the rows of its own samples against all columns.

In the trace
    Operators of an X-ray step, each of which names what made its arguments: calls of a module with the same operators on the same
    tensors; one line that runs the same operators on the same tensors in calls of several modules of a class; conversions
    of a tensor that one before has converted, and more conversions of trained weights of a size than gradients of that size; operators
    without a way back to anything that the step brings; results that no operator, gradient, copy to the host or later step takes;
    products of gathered rows with gathered columns, the same on every rank.

Bad
    loss = criterion(net(x), y)
    accuracy = (net(x).argmax(1) == y).float().mean()            # the network once more

Good
    out = net(x)
    loss = criterion(out, y)
    accuracy = (out.detach().argmax(1) == y).float().mean()

Harmless when
    The network or the layers are called with another mode or other Python numbers, or the result is read outside of torch; what comes
    out the same in each step is made of one batch that only a benchmark takes again and again, or of what changes once in a while.
"""

from __future__ import annotations

from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Rule
from nsysx.model import Finding

RULE = Rule(
    "NSX137",
    "needless-work",
    "Work whose result is there already, or that nothing reads",
    cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.GPU,
    leads=True,
    rests_on="What goes in and what reads the result was followed",
)
REQUIRES = ("steps", "gpu")


def check(case: Case) -> list[Finding]:
    """Return a finding for each kind of such work at one place that takes 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None:
        return case.cannot_tell(RULE, "operators were not recorded with what made their arguments", "nsysx run -- CMD")
    # Some thirty files, which no other report needs.
    from nsysx.findings import _needless_work

    return _needless_work.findings_of(case, RULE, flow, code)
