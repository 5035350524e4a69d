"""What to do about lines of a loop that make again what could be kept: networks, their wrappers, text. None of it can be tried yet."""

from __future__ import annotations

from . import Change, Remedy

_OWN_CODE = "what the line makes is the program's own code"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "added-as-it-is",
        "Add these numbers as they are: what writes into a tensor converts what it reads, and a conversion before it writes all of it out "
        "and reads it back",
        "total.add_(x)  # not total.add_(x.float()), with total in float32",
        "total has to be of the wider type, as it is now.", untried=_OWN_CODE,
    ),
    Remedy(
        "small-tensors-cast",
        "Cast the small float32 tensors of this arithmetic to the type of what they meet: autocast leaves it alone, so that 16 bits and "
        "float32 give float32, here and behind, until the next product converts it back",
        "return x * scale.to(x.dtype) + shift.to(x.dtype)  # or keep the buffers in 16 bits",
        "Results are rounded to 16 bits, as those of the products are.", untried=_OWN_CODE,
    ),
    Remedy(
        "networks-kept",
        "Keep the networks that are loaded here, each made and read once: here a network is set up with random weights and filled from a "
        "file, and its weights are copied to the GPU, for each use",
        "if path not in kept:  # kept = {} before the loop\n    kept[path] = build(path).to(device).eval()\nnet = kept[path]",
        "All of them together must have room on the GPU; else keep their weights in pinned memory, and load_state_dict() from there.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "one-cache-key",
        "Ask the cache for the key under which its entries are stored: asked for another one it never has any, and each step makes all of "
        "them again",
        "if key not in cache:\n    cache[key] = make(key)\nentry = cache[key]",
        "The key must tell apart all that an entry is made of. Nothing may write into an entry, and each stays in memory.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "wrapped-once",
        "Wrap the network once, before the loop, with all parameters that are ever trained: each new wrapper compares and sends all "
        "parameters between the ranks and makes new buckets. Parts that are frozen for now only change requires_grad",
        "net.requires_grad_(True)  # what is ever trained; frozen only behind the next line\n"
        "model = DDP(net, device_ids=[local], find_unused_parameters=True)  # once\n"
        "opt.add_param_group({'params': new})  # in the loop: what is trained from now on",
        "The gradients of frozen parts are reduced, as zeros, too: with the largest part frozen for long, wrap anew, but rarely.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "ids-passed-on",
        "Give the second network the numbers of the tokens, where both have one vocabulary: here they are copied to the host, decoded to "
        "text, and encoded to the same numbers again, while the GPU waits",
        "assert tok.get_vocab() == other_tok.get_vocab()  # once, before the loop\n"
        "out = other(input_ids=ids, attention_mask=(ids != tok.pad_token_id).long())",
        "Both tokenizers must be alike, and the text must go on as it was decoded; some text has several encodings.", untried=_OWN_CODE,
    ),
    Remedy(
        "penalty-at-times",
        "Take this penalty in every 16th step alone, weighed 16 times more (lazy regularization, StyleGAN2), and reuse the score of the "
        "loss where it is due",
        "if it % 16 == 0:\n"
        "    loss = loss + 16 * penalty(D, real)  # not in each step\n"
        "# Adam of D: lr * 16 / 17 and betas ** (16 / 17)",
        "Training then gives other numbers, though published ones for R1 and path lengths. Steps with it are longer by design.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "gradients-in-one-call",
        "Ask for the gradients of one output by all inputs in one call: one pass of autograd makes them all, and with create_graph a later "
        "backward goes through one graph, not through one for each input",
        "u_x, u_y, u_t = torch.autograd.grad(u, (x, y, t), torch.ones_like(u), create_graph=True)  # not a call for each",
        "All inputs must be there at the first of the calls, and nothing may be written in place between them.", untried=_OWN_CODE,
    ),
)  # fmt: skip
