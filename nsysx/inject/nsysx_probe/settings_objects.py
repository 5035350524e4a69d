"""What the objects of a program say about themselves: optimizers, wrappers of ranks, loaders, parameters. Attributes alone are read."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from . import deepspeed_engine
from .changes import is_library
from .probe_bounds import MOST_MODULES, MOST_OBJECTS, MOST_PARAMETERS
from .qualified_names import held
from .settings_state import asked, name_of


def _plain(value: Any) -> Any:
    """Return a value that JSON holds as it is, else its name or its class."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "name", None) or getattr(value, "__name__", None) or name_of(value)[:60]


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer, up to a limit."""
    return [p for group in optimizer.param_groups for p in group["params"]][:MOST_PARAMETERS]


def of_program(optimizers: list[Any]) -> list[Any]:
    """Return the optimizers without those that another one holds, to update its part of the parameters."""
    parts = {id(held(each).get("optim")) for each in optimizers if _is_shared(each)}
    return [each for each in optimizers if id(each) not in parts]


def optimizer(torch: Any, each: Any) -> dict[str, Any]:
    """Return class and options of an optimizer, and where its parameters and its state live."""
    groups = each.param_groups
    local_part = held(each).get("optim") if _is_shared(each) else None
    updates: Any = local_part if hasattr(local_part, "param_groups") else each
    options = {
        name: _plain(groups[0].get(name)) if groups and name in groups[0] else None
        for name in ("fused", "foreach", "capturable", "differentiable")
    }
    with torch._C.DisableTorchFunction():
        parameters = parameters_of(each)
        states = [s for p in parameters_of(updates)[:200] for s in _tensors(torch, updates.state.get(p))]
        return {
            "class": type(each).__name__,
            "module": type(each).__module__.partition(".")[0],
            **options,
            "takes_fused": "fused" in getattr(updates, "defaults", {}),
            "groups": len(groups),
            "parameters": len(parameters),
            "elements": sum(int(p.numel()) for p in parameters),
            "dtypes": _counted(name_of(p.dtype) for p in parameters),
            "devices": _counted(p.device.type for p in parameters),
            "state_devices": _counted(s.device.type for s in states),
            "state_dtypes": _counted(name_of(s.dtype) for s in states),
            **({"shared": asked(_shared, torch, each, local_part)} if local_part is not None else {}),
        }


def _is_shared(optimizer: Any) -> bool:
    """Return whether an optimizer shares its state out over the ranks, and sends what each of them has updated."""
    kind = loaded("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")
    return kind is not None and isinstance(optimizer, kind)


def _shared(torch: Any, optimizer: Any, local_part: Any) -> dict[str, Any]:
    """Return over how many ranks an optimizer is shared out, what updates this rank's part, its state, and how what is updated is sent."""
    parameters = parameters_of(local_part)
    states = [s for p in parameters for s in _tensors(torch, local_part.state.get(p))]
    return {
        "ranks": int(optimizer.world_size),
        "class": type(local_part).__name__,
        "module": type(local_part).__module__.partition(".")[0],
        "parameters": len(parameters),
        "elements": sum(int(p.numel()) for p in parameters),
        "state_bytes": sum(int(s.numel()) * s.element_size() for s in states),
        "bucket_view": bool(optimizer.parameters_as_bucket_view),
        "overlaps": bool(optimizer._overlap_with_ddp),
    }


def _tensors(torch: Any, state: Any) -> list[Any]:
    """Return the tensors of a parameter's state, without its count of steps, which is on the CPU by design."""
    if not isinstance(state, dict):
        return []
    return [v for k, v in state.items() if k != "step" and isinstance(v, torch.Tensor)]


def _counted(names: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def gradients(torch: Any, each: Any) -> dict[str, Any]:
    """Return the dtypes of the gradients that an optimizer is about to use, and how many parameters have none."""
    with torch._C.DisableTorchFunction():
        given = [p.grad for p in parameters_of(each) if p.requires_grad]
        return {"dtypes": _counted(name_of(g.dtype) for g in given if g is not None), "without": given.count(None)}


def scaler(each: Any) -> dict[str, Any]:
    """Return whether a gradient scaler scales. Its scale is a tensor and is not read."""
    return {"class": type(each).__name__, "enabled": asked(each.is_enabled)}


# ---- networks --------------------------------------------------------------------------------------------------------


def modules(root: Any) -> Iterator[Any]:
    """Yield the modules of a network, up to a limit, without asking methods that may be the user's."""
    waiting, seen = [root], set[int]()
    while waiting and len(seen) < MOST_MODULES:
        item = waiting.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            below = held(item).get("_modules")
            waiting += [m for m in reversed(list(below.values())) if m is not None] if isinstance(below, dict) else []


def parameters_in(root: Any) -> Iterator[Any]:
    """Yield the parameters of the ``modules`` of a network, one that two of them share twice."""
    for module in modules(root):
        for parameter in (held(module).get("_parameters") or {}).values():
            if parameter is not None:
                yield parameter


def network(torch: Any, root: Any) -> dict[str, Any]:
    """Return what kinds of numbers the parameters of a network are, and which kinds of layers it has."""
    dtypes: dict[str, int] = {}
    seen: set[int] = set()
    unlike, dims, device_map = [], set(), None
    convolution = getattr(torch.nn.modules.conv, "_ConvNd", ())
    convolutions = last = tied = 0
    with torch._C.DisableTorchFunction():
        for module in modules(root):
            device_map = device_map or held(module).get("hf_device_map")
            convolutions += isinstance(module, convolution)
            for parameter in (held(module).get("_parameters") or {}).values():
                tied += parameter is not None and id(parameter) in seen
                if parameter is None or id(parameter) in seen or len(seen) >= MOST_PARAMETERS:
                    continue
                seen.add(id(parameter))
                name = name_of(parameter.dtype)
                dtypes[name] = dtypes.get(name, 0) + int(parameter.numel())
                if name == "float64":
                    unlike.append(type(module).__name__)
                if parameter.dim() == 4:
                    last += parameter.is_contiguous(memory_format=torch.channels_last) and 1 not in parameter.shape[1:3]
                    dims.add(4)
    return {
        "class": type(root).__name__,
        "package": str(type(root).__module__).partition(".")[0],
        "logits_to_keep": asked(lambda: "logits_to_keep" in inspect.signature(type(root).forward).parameters),
        "parameters": len(seen),
        "dtypes": dtypes,
        "tied": tied > 0,
        "float64_in": sorted(set(unlike))[:MOST_OBJECTS],
        "convolutions": convolutions,
        "channels_last": last if dims else None,
        "training": held(root).get("training"),
        # By accelerate: on so many devices parts of it lie.
        "mapped_devices": asked(lambda: len(set(map(str, device_map.values()))) if device_map else None),
    }


def class_of(network: Any) -> str:
    """Return the class of a network; of one that DDP wraps its own, for two networks may be wrapped alike."""
    ddp = loaded("torch.nn.parallel.distributed", "DistributedDataParallel")
    return type(network.module if ddp and isinstance(network, ddp) else network).__name__


def wrappers(root: Any) -> list[dict[str, Any]]:
    """Return the options of each wrapper in a network (DDP, FSDP, DeepSpeed); those of one kind with the same options are counted."""
    options: list[dict[str, Any]] = []
    ddp = loaded("torch.nn.parallel.distributed", "DistributedDataParallel")
    whole = loaded("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
    sharded = loaded("torch.distributed.fsdp", "FSDPModule")
    engine, staged = (
        loaded("deepspeed.runtime.engine", "DeepSpeedEngine"),
        loaded("deepspeed.runtime.pipe.engine", "PipelineEngine"),
    )
    for module in modules(root):
        about = None
        if ddp and isinstance(module, ddp):
            about = asked(_ddp, module)
        elif whole and isinstance(module, whole):
            about = asked(_fsdp1, module)
        elif sharded and isinstance(module, sharded):
            about = asked(_fsdp2, module)
        elif (
            engine and isinstance(module, engine) and not (staged and isinstance(module, staged))
        ):  # stages are no copies
            about = asked(deepspeed_engine.options, module, parameters_in(module))
        if about is None:
            continue
        same = next((a for a in options if {**a, "count": 0} == {**about, "count": 0}), None)
        if same is not None:
            same["count"] += 1
        elif len(options) < MOST_OBJECTS:
            options.append(about)
    return options


def loaded(module: str, name: str) -> Any:
    """Return a class of torch if the program has loaded its module."""
    return getattr(sys.modules.get(module), name, None)


def _ddp(module: Any) -> dict[str, Any]:
    logged: Any = asked(lambda: module.logger._get_ddp_logging_data())
    numbers: Any = asked(lambda: dict(logged.ints_map)) or {}
    words: Any = asked(lambda: dict(logged.strs_map)) or {}
    return {
        "kind": "DDP",
        "count": 1,
        "find_unused_parameters": _own(module, "find_unused_parameters"),
        "static_graph": _own(module, "static_graph"),
        "gradient_as_bucket_view": _own(module, "gradient_as_bucket_view"),
        "broadcast_buffers": _own(module, "broadcast_buffers"),
        "bucket_cap_bytes": _own(module, "bucket_bytes_cap"),
        "bucket_bytes": words.get("rebuilt_bucket_sizes") or words.get("bucket_sizes"),
        "unused_parameter_bytes": numbers.get("unused_parameter_size"),
        "can_set_static_graph": asked(lambda: bool(numbers["can_set_static_graph"])),
        "hook": words.get("comm_hook"),
        "buffers": asked(lambda: len(module.modules_buffers)),
        "compiled": asked(lambda: _is_compiled(held(module)["_modules"]["module"])),
    }


def _is_compiled(module: Any) -> bool:
    """Return whether a module is compiled as a whole: by ``torch.compile(module)`` or by ``module.compile()``."""
    made = loaded("torch._dynamo.eval_frame", "OptimizedModule")
    return bool(made and isinstance(module, made)) or held(module).get("_compiled_call_impl") is not None


def _own(module: Any, name: str) -> Any:
    return _plain(held(module).get(name))


def _fsdp1(module: Any) -> dict[str, Any]:
    mixed: Any = held(module).get("mixed_precision")
    return {
        "kind": "FSDP",
        "count": 1,
        **{
            n: _own(module, n)
            for n in ("sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers")
        },
        "parameter_dtype": asked(lambda: _plain(mixed.param_dtype)),
        "reduce_dtype": asked(lambda: _plain(mixed.reduce_dtype)),
        "offload": asked(lambda: bool(module.cpu_offload.offload_params)),
    }


def _fsdp2(module: Any) -> dict[str, Any] | None:
    state, group = _sharded_group(module)
    if group is None:
        return None
    return {
        "kind": "fully_shard",
        "count": 1,
        "reshard_after_forward": asked(lambda: group.post_forward_mesh_info is not None),
        "forward_prefetch": asked(lambda: len(state._states_to_forward_prefetch) > 0),
        "backward_prefetch": asked(lambda: len(state._states_to_backward_prefetch) > 0),
        "parameter_dtype": asked(lambda: _plain(group.mp_policy.param_dtype)),
        "reduce_dtype": asked(lambda: _plain(group.mp_policy.reduce_dtype)),
        "offload": asked(lambda: type(group.offload_policy).__name__ == "CPUOffloadPolicy"),
        "mesh": asked(lambda: [int(n) for n in group.mesh_info.mesh.shape]),
        "mesh_names": asked(lambda: [str(n) for n in group.mesh_info.mesh.mesh_dim_names]),
    }


def _sharded_group(module: Any) -> tuple[Any, Any]:
    """Return torch's state of a module that fully_shard wraps, and its first group of parameters, None if it has none of its own."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.13 keeps a list of them
    return state, (groups[0] if groups else None) if groups is not None else state._fsdp_param_group


def reduces(root: Any) -> bool | None:
    """Return whether the next backward of a wrapped network reduces gradients across ranks; None if it is not wrapped."""
    ddp = loaded("torch.nn.parallel.distributed", "DistributedDataParallel")
    whole = loaded("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
    sharded = loaded("torch.distributed.fsdp", "FSDPModule")
    if ddp and isinstance(root, ddp):
        return bool(root.require_backward_grad_sync)
    if whole and isinstance(root, whole):
        return bool(root._sync_gradients)
    if sharded and isinstance(root, sharded):
        # A root has no parameters of its own where all of them are in blocks that are sharded each by itself.
        groups = (_sharded_group(module)[1] for module in modules(root) if isinstance(module, sharded))
        group = next((group for group in groups if group is not None), None)
        return None if group is None else bool(group.reduce_grads)
    return None


# ---- loaders ---------------------------------------------------------------------------------------------------------


def loader(each: Any) -> dict[str, Any]:
    """Return the options of a DataLoader."""
    return {
        "workers": asked(lambda: int(each.num_workers)),
        "pin_memory": asked(lambda: bool(each.pin_memory)),
        "persistent_workers": asked(lambda: bool(each.persistent_workers)),
        "prefetch_factor": asked(lambda: _plain(each.prefetch_factor)),
        "batch_size": asked(lambda: _plain(each.batch_size)),
        "dataset": asked(lambda: type(each.dataset).__name__),
        "samples": asked(lambda: _samples(each.dataset)),
        "stream": asked(lambda: _stream(each.dataset)),
        "sampler": asked(lambda: type(each.sampler).__name__),
        "shares": asked(lambda: _shares(each)),
        "collate": asked(lambda: _plain(each.collate_fn)),
        "collates": asked(lambda: line_of(each.collate_fn)),
        "start_method": asked(lambda: each.multiprocessing_context.get_start_method()),
        "iterators": 0,
    }


def _samples(dataset: Any) -> str | None:
    """Return file:line of the program's own method that makes a sample, also inside of subsets; None where it is a library's."""
    for _ in range(MOST_OBJECTS):
        for name in ("__getitem__", "__iter__"):
            line = line_of(getattr(type(dataset), name, None))
            if line is not None:
                return line
        dataset = held(dataset).get("dataset")
    return None


def _stream(dataset: Any) -> dict[str, Any] | None:
    """Return into how many ``shards`` a stream of the library datasets is cut for this rank; None of others.

    ``total``: for all ranks together, ``split``: for how many, each None where that is not known.
    """
    for _ in range(MOST_OBJECTS):
        if dataset is None:
            return None
        if type(dataset).__name__ == "IterableDataset" and type(dataset).__module__.startswith("datasets."):
            split, inner = (held(dataset).get(name) for name in ("_distributed", "_ex_iterable"))
            shards, total = (
                getattr(each, "num_shards", None) or getattr(each, "n_shards", None) for each in (dataset, inner)
            )
            return {
                "shards": _plain(shards),
                "total": _plain(total),
                "split": _plain(getattr(split, "world_size", None)),
            }
        dataset = held(dataset).get("dataset")
    return None


def _shares(each: Any) -> str | None:
    """Return file:line of the program's own class that says which samples a loader draws: of its __init__, else its __iter__."""
    for sampler in (each.batch_sampler, each.sampler):
        for name in ("__init__", "__iter__"):
            line = line_of(getattr(type(sampler), name, None))
            if line is not None:
                return line
    return None


def line_of(function: Any) -> str | None:
    """Return file:line of a function, of a method, or of how an object is called; None where it is a library's."""
    inner = getattr(function, "func", function)  # of functools.partial
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return None if code is None or is_library(code.co_filename) else f"{code.co_filename}:{code.co_firstlineno}"
