"""NSX131 line-work: lines of the program whose kernels only move memory take a large part of the GPU's work.

What it means
    A loss, an augmentation, a metric or an average that is written out in elementwise operations reads and writes its tensors once
    for each of them. For logits over a large vocabulary each pass moves as many bytes as the weights of the model.
    torch.compile(model) does not reach what runs outside of the model. Often one function of torch does the same in one pass.
    Operators that are larger than their result needs are told, too: a head that computes every position, of which only the last
    is read, or channels that are resampled before they are mixed. So are tensors that a loop makes longer by torch.cat, which copies all
    that is there for each part that comes: caches, histories, windows, buffers; and tensors that it fills part by part under autograd,
    whose backward copies all of the gradient for each part; and layers or networks that compute all rows again for each that comes.
    Tensors of which a loop takes pieces one by one (w[e], x[:, t]) are told likewise: backward makes a gradient of the whole for each.
    Attention that a loop calls for each document of a packed sequence is told, too, and a random order of all for few numbers of it.
    So is work on copies of rows, f(x[index]), that the rows need once, f(x)[index]: layers on edges of a graph, on repeated states.
    So is attention over the whole room of a cache of keys and values, of which few were written.
    So are caches that a beam search puts in another order for each token, though most of their rows are the same in all beams.
    So are networks, heads or experts that each compute all rows, of which a mask keeps those of one group.
    So are weights that each call puts together of a frozen one and a product of small rank (LoRA), whose gradients are made whole.
    So are layers on joined rows, layer(cat([a, b])), of which a part is a copy of fewer rows: a sum of two layers needs these once.
    So is torch.einsum of three or more tensors whose first two make a large one.
    So are heads that make logits for positions whose labels the loss ignores (prompts, padding, tokens that are not masked), or that a
    mask takes out of it: the probe reads behind a window how many labels count; else the loader's batches, or the sizes of what is
    written into labels, may tell.
    So are tensors that are converted only to be added to one of another type, as gradients to sums in float32.
    So are small float32 tensors, such as a frozen norm's buffers, that make float32 of what autocast's products make in 16 bits.
    So are layers of a graph network that compute all nodes of a sampled subgraph, of which the seeds are read.
    So is deformable attention in operators of torch, where a library's kernel was not built.
    So are losses of the nearest points whose gradients go through the distances of all pairs.
    So are cubes of all triples of samples, of which a mask of classes keeps few.
    So are masks of all scores and thresholds that are summed over the scores: a histogram counts them.
    So are messages of a graph's edges that are written out and added up, where a sparse product adds as it reads.
    So are products with masks of experts and places, nearly all zeros, that send rows of tokens to their slots and back.

In the trace
    Elementwise, reduction and copy kernels that one function of the program launches, in its forward and for its backward. A line
    inside a network counts only if what it calls has a better form that is known.

Bad
    target = F.one_hot(target, classes).float()            # rows of zeros, in int64 and once more in float32
    loss = -(target * F.log_softmax(logits, -1)).sum(-1).mean()

Good
    loss = F.cross_entropy(logits, target, label_smoothing=0.1)

Harmless when
    The tensors are small, or what is written out has no shorter form.
"""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings._case import Case, Rule
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.model import Finding

RULE = Rule(
    "NSX131",
    "line-work",
    "Work of lines that only moves memory",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    leads=True,
    rests_on="The operators of these lines were recorded",
)
REQUIRES = ("steps", "kernels")


def check(case: Case) -> list[Finding]:
    """Return a finding for each group of lines whose change saves 5 % of the step or more."""
    code = case.profile.code()
    if code is None:
        return case.cannot_tell(RULE, "which line launches a kernel was not recorded", "nsysx run -- CMD")
    # Some fifty files, which no other report needs.
    from nsysx.findings import _line_work

    return _line_work.findings_of(case, RULE, code) or case.clear(
        RULE, f"no lines whose kernels only move memory can save {units.bound(REPORTED_SHARE)} of the step"
    )
