"""What is wrong at a line that holds the GPU up, in a few words for the headline, by the remedy that its rule names."""

from __future__ import annotations

from collections.abc import Mapping

#: Remedy -> what the line does. None for a remedy that is for whatever the line does, or that says how to do less of it.
FAULTS: Mapping[str, str] = {
    "arrays-for-objects": "items are looked up one at a time",
    "arrays-once": "lists are converted to arrays",
    "batch-as-it-is": "it waits for a full batch",
    "callbacks-rarely": "callbacks and loggers run in each step",
    "checked-rarely": "each check waits for the GPU",
    "collective-rarely": "a collective in each step",
    "converted-on-gpu": "numbers are converted on the CPU",
    "copied-in-place": "a deep copy in each step",
    "decoded-in-workers": "samples are decoded or augmented in the loop",
    "delivered-sooner": "it waits for what something else delivers",
    "drawn-by-weight": "weighted draws are made on the CPU",
    "drawn-on-gpu": "samples are drawn on the CPU",
    "drawn-rarely": "pictures are drawn in the loop",
    "drawn-without-permutation": "every index is shuffled to draw a few",
    "features-on-gpu": "features are extracted on the CPU",
    "fixed-shape": "the host waits for a size (nonzero, x[mask])",
    "foreach-parameters": "parameters are handled one at a time",
    "gradients-in-buckets": "gradients are reduced one at a time",
    "independent-normal": "MultivariateNormal factorizes a matrix for each sample",
    "iterator-once": "a new iterator of the loader in each step",
    "kept-constant": "a constant is created in each step",
    "keep-on-gpu": "a value is read back in each step",
    "logged-rarely": "logging in each step",
    "made-on-gpu": "data is created on the CPU",
    "made-once": "it is created anew in each step",
    "metrics-rarely": "a metric is computed in each step",
    "no-collect": "garbage collection or empty_cache() in the loop",
    "no-kernel-built-in-a-step": "a kernel is built for each new size",
    "no-lock": "it waits for a lock or another thread",
    "no-process-in-a-step": "a process is started in each step",
    "no-sleep": "it sleeps",
    "numpy-on-gpu": "numpy works in each step",
    "one-length-for-attention": "cuDNN builds an attention kernel for each new length",
    "own-part-of-data": "one rank reads and sends the data",
    "pairs-at-once": "the costs of each sample are copied and matched alone",
    "parsed-once": "files are read or parsed in the loop",
    "picked-on-gpu": "rows are picked on the CPU",
    "preallocated": "torch.cat grows a tensor",
    "ranked-on-gpu": "scores are ranked on the CPU",
    "sample-on-gpu": "tensors are worked on with numpy on the CPU",
    "saved-aside": "a checkpoint is written in the loop",
    "scan-at-once": "a recurrence runs element by element",
    "segments-at-once": "each group has its own mask",
    "shards-kept": "whole weights are gathered in each step",
    "table-once": "pandas looks up each row by its label",
    "tensors-gathered": "ranks exchange Python objects",
    "tokens-once": "text is tokenized in the loop",
    "weights-on-gpu": "weights are copied to the CPU in each step",
}

#: Remedy of a loader, or of calls with few inputs -> what is wrong there: the cause of the whole limit, told behind it with its line.
OF_THE_LIMIT: Mapping[str, str] = {
    "batched-samples": "samples are fetched one at a time",
    "cheaper-samples": "samples take the workers long",
    "cropped-first": "the crop comes last",
    "larger-batches": "each call has few inputs",
    "loader-workers": "too few workers",
    "loader-workers-8": "no workers",
    "persistent-workers": "each epoch starts new workers",
    "vectorized": "a loop of Python over single items",
}
