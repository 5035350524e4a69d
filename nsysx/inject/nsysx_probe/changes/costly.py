"""Settings that only cost time, left on or off. What sets them is the program or its environment, so none is tried yet."""

from __future__ import annotations

from . import Change, Remedy

_SET_BY_PROGRAM = "the program or its environment sets it: change it there, and time both"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "unset-launch-blocking",
        "Unset CUDA_LAUNCH_BLOCKING: it is for finding the operator that fails, and makes the host wait for each kernel",
        "unset CUDA_LAUNCH_BLOCKING  # in the shell, or take it out of os.environ", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "unset-variable", "Unset this variable of the environment", "env -u NAME python train.py", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-anomaly", "Turn anomaly detection off: it is for finding where a NaN comes from",
        "torch.autograd.set_detect_anomaly(False)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-profiler", "Run without torch's own profiler, or give it a schedule of few steps",
        "schedule = torch.profiler.schedule(wait=100, warmup=2, active=4, repeat=1)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "not-deterministic", "Allow algorithms that add in any order",
        "torch.use_deterministic_algorithms(False); torch.backends.cudnn.deterministic = False",
        "Two runs then differ by rounding: keep it where they must be alike bit for bit.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-cudnn-benchmark", "Turn the search off, or pad inputs to few shapes", "torch.backends.cudnn.benchmark = False",
        untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "pad-to-longest",
        "Pad each batch to its own longest sample, and put samples of like lengths into one batch",
        'tokenizer.pad(samples, padding="longest", pad_to_multiple_of=8)  # in the collate_fn; and a sampler by length',
        untried="how the samples are put together is the program's own code",
    ),
    Remedy(
        "detached",
        "Detach what another network made before it is used in this loss, or call that network under torch.no_grad(): its gradients "
        "are reset before an optimizer reads them",
        "loss = critic(fake.detach()).mean()  # or: with torch.no_grad(): fake = generator(z)",
        untried="which tensors to detach, the program says",
    ),
    Remedy("cudnn-on", "Turn cuDNN on", "torch.backends.cudnn.enabled = True", untried=_SET_BY_PROGRAM),
    Remedy(
        "sdpa-allowed", "Allow the fast kernels of scaled_dot_product_attention",
        "torch.backends.cuda.enable_flash_sdp(True); torch.backends.cuda.enable_mem_efficient_sdp(True)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "float32", "Make this float32 where it is made (numpy's default is float64)", "x = torch.as_tensor(array, dtype=torch.float32)",
        "The result must not need 16 digits.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "fft-length",
        "Pad the transform to a length whose factors are 2, 3, 5 and 7, mostly the next power of 2: cuFFT has kernels for these",
        "n = 1 << (n - 1).bit_length()  # or scipy.fft.next_fast_len\ny = torch.fft.rfft(x, n=n)",
        "What is padded must be cut off again, as of a convolution; a spectrum has other frequencies.",
        untried="which lengths may change, the program says",
    ),
    Remedy(
        "no-scaler", "Leave the GradScaler out: bfloat16 has the range of float32", "loss.backward(); optimizer.step()",
        untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "persistent-workers", "Keep the workers of the loader",
        "loader = DataLoader(data, num_workers=8, persistent_workers=True)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-unused-search", "Leave find_unused_parameters out", "model = DistributedDataParallel(module, gradient_as_bucket_view=True)",
        "Every parameter must get a gradient in every step.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-sync",
        "Reduce gradients in the last micro-step alone: no_sync() around the others, forward and backward "
        "(fully_shard: set_requires_gradient_sync)",
        "with model.no_sync() if not last else contextlib.nullcontext():\n    model(x).backward()",
        "Gradients of all micro-steps are kept until then; a sharded model keeps them whole.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "more-cores", "Give the program more cores, near its GPU",
        "taskset -c 0-7 python train.py  # or the scheduler's option, such as --cpus-per-task=8",
        untried="who starts the program gives it cores",
    ),
    Remedy(
        "default-backend", "Compile with the default backend", "model = torch.compile(model)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "optimizer-on-gpu", "Keep parameters and state on the GPU if they fit: make the optimizer after model.cuda()",
        'model = model.to("cuda"); optimizer = torch.optim.AdamW(model.parameters())', untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "autocast-once", "Enter autocast once around forward and loss: weights are then cast once",
        'with torch.autocast("cuda", torch.bfloat16):\n    loss = loss_of(model(x), y)', untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "fewer-checkpoints", "Checkpoint fewer parts, or none", "y = block(x)  # not checkpoint(block, x)",
        "What is kept must fit: try half of the parts first.", untried=_SET_BY_PROGRAM,
    ),
)  # fmt: skip
