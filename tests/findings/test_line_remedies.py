"""Lines that hold the CPU while the GPU waits: each is told with its place and with what can be done about what it calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nsysx.findings import _line_remedies
from nsysx.findings._fix import Fix
from nsysx.findings._line_remedies import Seen, fix_of
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Summary
from tests.findings import US, said_of
from tests.findings.lined import Lined, forward

LINES = [
    (
        "shards-saved",
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))",
    ),
    ("shards-saved", "dcp.save({'model': state}, checkpoint_id=path)"),
    ("converted-on-gpu", "x = (torch.tensor(obs, dtype=torch.float32) / 255.0).to(device)"),
    ("converted-on-gpu", "batch = np.asarray(frames, np.float32) / 255"),
    ("arrays-once", "x = torch.tensor([rows[j] for j in k])"),
    ("arrays-once", "batch = np.stack([load(i) for i in index])"),
    ("arrays-once", "return torch.tensor(nxt)"),
    ("numpy-on-gpu", "net(torch.from_numpy(np.stack(frames)).to(device))"),  # arrays are no lists of numbers
    ("iterator-once", "x, y = next(iter(loader))"),
    ("made-once", "fast = torch.compile(loss_of)"),
    ("wrapped-once", "self.model = DDP(self.net, device_ids=[local])"),
    ("wrapped-once", "fully_shard(block, mesh=mesh)"),
    ("networks-kept", "net.load_state_dict(torch.load(path, map_location='cpu'))"),
    ("networks-kept", "weights = load_file(checkpoint)"),
    ("networks-kept", "judge = AutoModel.from_pretrained(name).to(device)"),
    ("foreach-parameters", "target.load_state_dict(net.state_dict())"),  # no file is read
    ("groups-once", "pair = dist.new_group([0, 1])"),
    ("groups-once", "g, _ = dist.new_subgroups(group_size=2)"),
    ("own-state-saved", "opt.consolidate_state_dict(to=0)"),
    ("statistics-averaged", "update_bn(train_loader, swa, device=dev)"),
    ("made-once", "mesh = init_device_mesh('cuda', (2, 4))"),
    ("no-collect", "gc.collect()"),
    ("independent-normal", "return MultivariateNormal(mean, torch.diag_embed(std ** 2))"),
    ("drawn-on-gpu", "false = negative_sampling(edges, num_nodes=n)"),
    ("masked-in-workers", "neg = _sample_negative_indices((B, int(L.max())), 100, mask)"),
    ("masked-in-workers", "mask = _compute_mask_indices((B, int(L.max())), 0.65, 10)"),
    ("filters-once", "fb = torch.from_numpy(mel_filterbank(SR, n_fft, n_mels)).float().to(y.device)"),
    ("filters-once", "fb = librosa.filters.mel(sr=SR, n_fft=n_fft, n_mels=n_mels)"),
    ("filters-once", "win = torch.hann_window(n_fft).to(y.device)"),
    ("drawn-rarely", "plt.savefig(path)"),
    ("drawn-rarely", "writer.add_images('samples', x, step)"),
    ("pairs-at-once", "i, j = linear_sum_assignment(cost.cpu())"),
    ("symmetric-eigenvalues", "ev = torch.linalg.eigvals((s1 @ s2).double())"),
    ("symmetric-eigenvalues", "root = scipy.linalg.sqrtm(s1 @ s2)"),
    ("parsed-once", "x = np.load(files[i])"),
    ("parsed-once", "x = torch.load(self.files[i])"),  # a sample
    ("parsed-once", "with h5py.File(path) as f:"),
    ("histograms-rarely", "h, edges = np.histogram(p.grad.float().cpu().numpy(), bins=64)"),
    ("histograms-rarely", "writer.add_histogram(name, p.grad, step)"),
    ("table-once", "row = frame.iloc[i]"),
    ("metrics-rarely", "auc = roc_auc_score(y.cpu(), p.cpu())"),
    ("logged-rarely", "log.writerow([step, value])"),
    ("no-sleep", "time.sleep(.01)"),
    ("no-lock", "lock.acquire()"),
    ("no-lock", "thread.join()"),
    ("delivered-sooner", "batch = queue.get()"),
    ("batch-as-it-is", "batch.append(self.inbox.get(timeout=left))"),
    ("delivered-sooner", "hear(studio.pieces.get())"),
    ("no-process-in-a-step", "subprocess.run(['nvidia-smi'])"),
    ("parsed-once", "row = json.loads(text)"),
    ("decoded-in-workers", "image = Image.open(path).convert('RGB')"),
    ("features-on-gpu", "inputs = self.extractor(calls, sampling_rate=16000)"),
    ("features-on-gpu", "mel = T.MelSpectrogram(16000)(waves)"),
    ("foreach-parameters", "clip_grad_norm_(model.parameters(), 1.0, foreach=False)"),
    ("tokens-once", "ids = tokenizer(texts, padding=True)"),
    ("saved-aside", "torch.save(model.state_dict(), path)"),
    ("logged-rarely", "print(step, total)"),
    ("logged-rarely", "self.log_dict(grad_norm(self, norm_type=2))"),
    ("checked-rarely", "if torch.is_tensor(part) and not torch.isfinite(part).all():"),
    ("checked-rarely", "assert (x > 0).all()"),
    ("keep-on-gpu", "losses.append(loss.item())"),
    ("drawn-without-permutation", "chosen = np.random.choice(n, size=k, replace=False)"),
    ("drawn-without-permutation", "rows = np.random.permutation(len(points))[:k]"),
    ("drawn-by-weight", "index = np.random.choice(self.size, batch, p=probs)"),
    ("drawn-by-weight", "rows = self.rng.choice(n, size=k, replace=True, p=w / w.sum())"),
    ("drawn-by-weight", "rows = random.choices(range(n), weights=priorities, k=64)"),
    ("drawn-by-weight", "rows = random.choices(rows, priorities, k=64)"),
    ("drawn-by-weight", "counts = np.random.multinomial(64, probs)"),
    ("drawn-by-weight", "rows = torch.multinomial(prio.pow(alpha), k, replacement=True)"),
    ("arrays-for-objects", "rows = random.choices(memory, k=64)"),
    ("arrays-for-objects", "obs, act, rew, nxt, done = map(np.stack, zip(*batch))"),
    ("arrays-for-objects", "batch = [self.mem[i] for i in np.random.randint(0, len(self.mem), 512)]"),
    ("numpy-on-gpu", "rows = np.random.choice(n, k, replace=False, p=probs)"),  # without replacement it is another draw
    ("picked-on-gpu", "chosen = np.random.choice(n, size=k, p=None)"),
    ("picked-on-gpu", "rows = torch.randperm(len(points))[:k]"),
    ("picked-on-gpu", "chosen = np.random.choice(n, size=k)"),
    ("picked-on-gpu", "order = np.random.permutation(n)"),
    ("picked-on-gpu", "rows = random.sample(range(n), k)"),
    ("arrays-for-objects", "batch = Transition(*zip(*random.sample(self.memory, n)))"),
    ("ranked-on-gpu", "best = np.argpartition(-scores, k, axis=1)[:, :k]"),
    ("sample-on-gpu", "c = np.cumsum(p[b]); nxt.append(int(np.searchsorted(c, r)))"),
    ("fixed-shape", "picked = torch.where(x > 0)"),
    ("fixed-shape", "rows = x[mask]"),
    ("collective-rarely", "dist.all_reduce(total)"),
    ("gradients-in-buckets", "for p in net.parameters(): dist.all_reduce(p.grad)"),
    ("counted-apart", "dist.all_gather(parts, target)"),
    ("counted-apart", "dist.all_gather_object(parts, {'pred': pred.cpu(), 'mask': mask.cpu()})"),
    ("collective-rarely", "dist.all_gather_into_tensor(table, counts)"),
    ("tensors-gathered", "dist.all_gather_object(everyone, mine)"),
    ("logged-apart", "self.log_dict(metrics, on_step=True, sync_dist=True)"),
    ("logged-rarely", "self.log_dict(metrics, on_step=True, sync_dist=False)"),
    ("shards-kept", "full = p.full_tensor()"),
    ("shards-kept", "with FSDP.summon_full_params(model):"),
    ("own-part-of-data", "dist.broadcast_object_list(batch, src=0)"),
    ("own-part-of-data", "dist.scatter(x, batches if rank == 0 else None)"),
    ("foreach-parameters", "for p, e in zip(model.parameters(), ema): e.lerp_(p, .01)"),
    ("preallocated", "cache = torch.cat([cache, k], 2)"),
    ("preallocated", "self.keys = torch.cat((self.keys, k), dim=2)"),
    ("copied-in-place", "best = copy.deepcopy(model)"),
    ("numpy-on-gpu", "y = np.fft.rfft(x)"),
    ("numpy-on-gpu", "distance, near = tree.query(points, k=16)"),
    ("keep-on-gpu", "state = {name: value.to('cpu') for name, value in kept.items()}"),
    ("fixed-shape", "rows = torch.argwhere(scores > 0.5)"),
    ("copied-in-place", "best = copy.deepcopy(model.state_dict())"),
    ("kept-constant", "mask = torch.triu(torch.full((n, n), float('-inf')), 1).to(x.device)"),
    ("kept-constant", "position = torch.arange(n).cuda()"),
    ("arrays-once", "x = torch.FloatTensor(rows).to(device)"),
    ("decoded-in-workers", "image = ImageEnhance.Contrast(image).enhance(1.2)"),
    ("decoded-in-workers", "x = self.aug(x)"),
    ("parsed-once", "text = file.readline()"),
]
#: Lines that do none of this.
OTHERS = [
    "outs = [self.heads[i](x) for i in ids]",
    "names = [name for name, _ in zip(*pairs)]",
    "net = self.model.module if isinstance(self.model, DDP) else self.model",
    "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)",  # one call for all of them already
    "loss = net(x)",
    "', '.join(names)",
    "loss.backward()",
    "step += 1",
    "y = self.cell(torch.cat([state, x], -1))",  # inputs of one round
    "feats = torch.cat([self.feats, x], -1)",
    "y = self.norm(x) + x",
    "optimizer.step()",
    "mask = torch.arange(n, device=x.device)",
    "x = x.to(device)",
    "caught = aug + 1",
    "tree.add(node)",
]


@pytest.mark.parametrize(("remedy", "text"), LINES)
def test_what_a_line_calls_says_what_to_do(remedy: str, text: str) -> None:
    fix = fix_of(Seen(text))
    assert fix is not None and [w.name for w in fix.ways] == [remedy]


@pytest.mark.parametrize("text", OTHERS)
def test_a_line_that_does_none_of_it_gets_no_such_advice(text: str) -> None:
    assert fix_of(Seen(text)) is None


def test_all_of_the_table_are_remedies_and_their_code_compiles() -> None:
    known = changes.remedies()
    for kind in _line_remedies._KINDS:
        compile(known[kind.remedy].example, kind.remedy, "exec")


@pytest.mark.parametrize("text", ["boxes = boxes[scores > 0.5]", "rows = x[~pad]", "y = self.of(x)[target != ignored]"])
def test_rows_that_a_comparison_picks_wait_for_their_number(text: str) -> None:
    fix = fix_of(Seen(text, waits=1))
    assert fix is not None and [w.name for w in fix.ways] == ["fixed-shape"]
    assert fix_of(Seen(text)) is None, "without a wait it may be a table of pandas, or numpy's"


@pytest.mark.parametrize("text", ["rows = [row for row in rows if row > 0]", "x = x[:, 1:]", "y = kept[index]"])
def test_no_comparison_that_picks_rows(text: str) -> None:
    assert fix_of(Seen(text, waits=1)) is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("q = torch.stack([c(torch.cat([o, a], -1)) for c in self.critics])", "stacked-models"),
        ("out = [head(x) for x, head in zip(xs, self.heads)]", "stacked-models"),
        ("q = torch.stack([self.row(x, i) for i in range(n)])", "arrays-once"),
    ],
)
def test_a_line_that_calls_one_network_after_the_other(text: str, remedy: str) -> None:
    fix = fix_of(Seen(text, launches=1000))
    assert fix is not None and [way.name for way in fix.ways] == [remedy]
    assert [way.name for way in getattr(fix_of(Seen(text)), "ways", ())] != ["stacked-models"]


def test_kernels_built_in_each_step_go_before_what_the_text_says() -> None:
    attention = "y = F.scaled_dot_product_attention(q, k[:, :n], v[:, :n]); log.append(y.item())"
    assert [w.name for w in fix_of(Seen(attention, loads=1)).ways] == ["one-length-for-attention"]  # type: ignore[union-attr]
    assert [w.name for w in fix_of(Seen("y = f(x)", loads=2)).ways] == ["no-kernel-built-in-a-step"]  # type: ignore[union-attr]
    assert fix_of(Seen("y = f(x)", loads=0.1)) is None


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("pandas/core/frame.py", "table-once"),
        ("sklearn/metrics/_ranking.py", "metrics-rarely"),
        ("sklearn/svm/_base.py", "numpy-on-gpu"),
        ("transformers/models/bert/tokenization_bert.py", "tokens-once"),
        ("transformers/models/whisper/feature_extraction_whisper.py", "features-on-gpu"),
        ("transformers/models/bert/modeling_bert.py", None),
        ("torchvision/transforms/v2/_color.py", "decoded-in-workers"),
        ("torchvision/models/resnet.py", None),
        ("matplotlib/figure.py", "drawn-rarely"),
        ("wandb/sdk/wandb_run.py", "logged-rarely"),
        ("h5py/_hl/dataset.py", "parsed-once"),
        ("pytorch_lightning/loops/fit_loop.py:_FitLoop.advance", None),
        ("pytorch_lightning/callbacks/lr_monitor.py:LearningRateMonitor.on_train_batch_start", "callbacks-rarely"),
        ("lightning_fabric/loggers/csv_logs.py:_ExperimentWriter.save", "callbacks-rarely"),
        ("transformers/trainer.py:Trainer.training_step", None),
        ("transformers/trainer.py:Trainer._maybe_log_save_evaluate", "callbacks-rarely"),
    ],
)
def test_a_line_whose_text_says_nothing_is_told_by_the_package_that_it_runs(file: str, remedy: str | None) -> None:
    fix = _line_remedies.fix_by_package(file)
    assert remedy == (None if fix is None else fix.ways[0].name)


@pytest.mark.parametrize(("inside_us", "remedy"), [(3_000, "table-once"), (1_000, "call-ahead")])
def test_the_package_has_to_hold_half_of_the_time_of_the_line(inside_us: int, remedy: str, tmp_path: Path) -> None:
    def prepared(program: Lined, number: int) -> None:
        with program.line(12):
            program.host(4_000 - inside_us)
            begin = program.t
            program.host(inside_us)
            if program.noted is not None:
                program.noted.append(("/env/lib/site-packages/pandas/core/frame.py:10 apply", begin, program.t))
        with program.line(13):
            program.copy(20)
        rest(program)

    (line,) = Lined({12: "rows = self.prepared(index)"}).run(prepared).found(tmp_path, "NSX123")
    assert [way.name for way in line.remedies] == [remedy] and line.where["line"] == 12
    assert ("Most of its time is in pandas/core/frame.py" in line.detail) == (remedy == "table-once")


def first(summary: Summary) -> tuple[str, int | None]:
    assert summary.answer is not None
    do = summary.answer.do[0]
    return do.code, do.where.get("line")


def rest(program: Lined) -> None:
    forward(program)
    with program.line(21), program.range("optimizer AdamW"):
        program.launch(4)
    with program.line(30):
        program.sync()


def made_of_lists(program: Lined, number: int) -> None:
    with program.line(12):
        program.host(4_000)
    with program.line(13):
        program.copy(20)
    rest(program)


def an_array(program: Lined, number: int) -> None:
    with program.line(12):
        program.host(3)
    with program.line(13):
        program.copy(20)
    rest(program)


def sampled_by_numpy(program: Lined, number: int) -> None:
    rest(program)
    with program.line(12):
        program.copy(20, "DtoH")
        program.host(3_000)


def sampled_there(program: Lined, number: int) -> None:
    rest(program)
    with program.line(12):
        program.launch(5)


def loading(program: Lined, number: int) -> None:
    """Attention builds a kernel for the length of each step."""
    forward(program, 5)
    with program.line(12), program.range("forward"), program.range("net:Net"):
        program.host(3_000)
        program.call("cuLibraryLoadData", 50)
        program.launch(5)
    rest(program)


def loaded(program: Lined, number: int) -> None:
    forward(program, 5)
    with program.line(12), program.range("forward"), program.range("net:Net"):
        program.launch(5)
    rest(program)


FAULTS: list[tuple[str, str, Callable[[Lined, int], None], Callable[[Lined, int], None]]] = [
    ("arrays-once", "x = torch.tensor([rows[j] for j in k])", made_of_lists, an_array),
    ("sample-on-gpu", "n = np.searchsorted(np.cumsum(p.cpu().numpy()), r)", sampled_by_numpy, sampled_there),
    ("one-length-for-attention", "a = F.scaled_dot_product_attention(q, k[:, :n], v[:, :n])", loading, loaded),
]


@pytest.mark.parametrize(("remedy", "text", "fault", "without"), FAULTS)
def test_the_line_is_what_to_do_and_nothing_without_the_fault(
    tmp_path: Path,
    remedy: str,
    text: str,
    fault: Callable[[Lined, int], None],
    without: Callable[[Lined, int], None],
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    summary = Lined({12: text}).run(fault).summary(tmp_path / "a")
    finding = next(f for f in summary.findings or () if f.code == "NSX123")
    assert finding.verdict == "found" and finding.where["line"] == 12
    assert [w.name for w in finding.remedies] == [remedy]
    assert finding.title.startswith(f"train.py:12 `{text[:20]}") and "holds the CPU for" in finding.title
    assert 2_500 * US < (finding.saving.likely_ns or 0) < 4_500 * US
    assert not finding.saving.bound
    assert first(summary) == ("NSX123", 12)
    assert not [f for f in summary.findings or () if f.code == "NSX114" and f.verdict == "found"], "told with the line"
    assert [f.verdict for f in Lined({12: text}).run(without).findings(tmp_path / "b", "NSX123")] == ["clear"]


def test_a_kernel_that_is_only_looked_up_is_not_built(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        forward(program, 5)
        with program.line(12), program.range("forward"), program.range("net:Net"):
            program.host(3_000)
            program.call("cuKernelGetFunction", 1)
            program.launch(5)
        rest(program)

    finding = next(f for f in Lined({12: "a = self.cell(x)"}).run(body).findings(tmp_path, "NSX123"))
    assert finding.verdict == "found" and finding.where["line"] == 12
    assert "no-kernel-built-in-a-step" not in [way.name for way in finding.remedies]


@pytest.mark.parametrize(
    ("function", "cls", "loops"),
    [("Net.forward", "Net", True), ("Net.forward", "LSTM", False), ("train", "Net", False)],
    ids=["a loop in forward", "one call of a recurrent layer", "a line that calls the network"],
)
def test_what_a_network_launches_is_a_loop_only_of_a_line_in_it(
    tmp_path: Path, function: str, cls: str, loops: bool
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12, function), program.range("forward"), program.range(f"net:{cls}"):
            for _ in range(120):
                program.host(10)
                program.launch(4)
        rest(program)

    found = Lined({12: "x = self.layer(x)"}).run(body).found(tmp_path, "NSX123")
    assert [w.name for f in found for w in f.remedies] == ["batched-operation"] * loops


@pytest.mark.parametrize("function", ["train", "Net.forward"])
def test_a_line_that_runs_the_network_is_not_to_be_moved(tmp_path: Path, function: str) -> None:
    """What takes long below it is to be found out: no loop is without that line."""

    def body(program: Lined, number: int) -> None:
        forward(program, 5)
        with program.line(12, function), program.range("forward"), program.range("net:Net"):
            program.launch(5)
            program.host(3_000)
            program.launch(5)
        rest(program)

    stalls = Lined({12: "loss = net(x)"}).run(body).found(tmp_path, "NSX114")
    assert not [f for f in stalls if "out of the loop" in f.fix]


@pytest.mark.parametrize(
    ("text", "remedies"),
    [
        ("return np.random.choice(n, k, replace=False)", ["drawn-without-permutation"]),
        ("state = world.advance(state)", ["call-ahead"]),
    ],
)
def test_a_stall_of_several_lines_is_told_with_the_line_that_runs_for_most_of_it(
    text: str, remedies: list[str], tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12, "picked"):
            program.host(2_200)
        with program.line(14):
            program.host(1_800)
        rest(program)

    run = Lined({12: text, 14: "x = world.seen(rows)"}).run(body)
    (line, other) = run.found(tmp_path, "NSX123", among_all=True)
    assert line.where["line"] == 12 and [way.name for way in line.remedies] == remedies
    # It saves its own part of the stall, and the stall is no finding beside it that promises the other line's time, too.
    saves = [f.saving.likely_ns or 0 for f in (line, other)]
    assert 1.1 < saves[0] / saves[1] < 1.35
    assert not run.found(tmp_path, "NSX114", among_all=True)


def test_a_stall_that_no_step_of_the_x_ray_has_gets_no_line(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        rest(program)
        program.host(4_000 if program.noted is None else 10)
        with program.line(12):
            program.launch(5)
        rest(program)

    stalls = Lined({12: "x = world.seen(rows)"}).run(body).found(tmp_path, "NSX114")
    assert stalls and not any("while the host runs" in f.title for f in stalls)


def test_a_line_of_which_nothing_better_is_known_is_told_with_its_place(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12):
            program.host(4_000)
        rest(program)

    summary = Lined({12: "state = world.advance(state)"}).run(body).summary(tmp_path)
    finding = next(f for f in summary.findings or () if f.code == "NSX123")
    assert finding.saving.bound, "what of it can go is not known"
    assert "state = world.advance(state)" in finding.title
    assert first(summary) == ("NSX123", 12)


def by_hand(program: Lined, number: int) -> None:
    """Averages of parameters made by hand: 60 launches of line 15, outside of all modules."""
    rest(program)
    with program.line(15):
        for _ in range(60):
            program.host(12)
            program.launch(2)
    with program.line(16):
        program.sync()


def in_one_call(program: Lined, number: int) -> None:
    rest(program)
    with program.line(15):
        program.launch(20)
    with program.line(16):
        program.sync()


def test_a_loop_over_parameters_is_one_call(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = {15: "e.mul_(decay).add_(p.data, alpha=1 - decay)  # of ema"}
    (finding,) = Lined(text).run(by_hand).found(tmp_path / "a", "NSX123")
    assert finding.where["line"] == 15 and [w.name for w in finding.remedies] == ["foreach-parameters"]
    assert 600 * US < (finding.saving.likely_ns or 0) < 1_300 * US
    assert "60 launches" in finding.detail
    assert not Lined(text).run(in_one_call).found(tmp_path / "b", "NSX123")


@pytest.mark.parametrize("function", ["Raster.__torch_function__", "Trace.__torch_dispatch__", "Net.forward"])
def test_operators_that_pass_through_python_are_no_loop(tmp_path: Path, function: str) -> None:
    """Their launches stay, as far apart as others are: of 8.2 ms about 120 times 19 us."""

    def body(program: Lined, number: int) -> None:
        with program.line(20, "Net.forward"), program.range("forward"), program.range("net:Net"):
            with program.line(12, function):
                for _ in range(120):
                    program.host(60)
                    program.launch(4)
            with program.line(14, function):
                program.host(1_000)
        forward(program, 130)
        rest(program)

    text = {
        12: "result = super().__torch_function__(func, types, args, kwargs)",
        14: "self.meta = copy.deepcopy(a.meta)",
    }
    found = Lined(text).run(body).found(tmp_path, "NSX123")
    plain = [f for f in found if [w.name for w in f.remedies] == ["plain-tensors"]]
    if function == "Net.forward":
        assert not plain and "batched-operation" in [w.name for f in found for w in f.remedies]
        return
    assert len(found) == 1 and plain == found and found[0].where["line"] == 12
    assert 5_000 * US < (found[0].saving.likely_ns or 0) < 6_500 * US
    assert (found[0].saving.most_ns or 0) > 7_000 * US, "all of it, at most"


def by_groups(program: Lined, number: int) -> None:
    """Rows of 40 groups picked by masks, each of which reads its size back: line 15, in the network."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(500)
        with program.line(15, "Net.forward"):
            for _ in range(40):
                for _ in range(3):
                    program.host(10)
                    program.launch(2)
                program.copy(1, "DtoH", bytes=8)
                program.sync()
    with program.line(16):
        program.sync()


def at_once(program: Lined, number: int) -> None:
    with program.range("forward"), program.range("net:Net"):
        program.launch(500)
        with program.line(15):
            program.launch(60)
    with program.line(16):
        program.sync()


def test_a_loop_inside_a_network_is_its_lines(tmp_path: Path) -> None:
    """The change for the whole network promises more, and cannot be made around what reads back."""
    (tmp_path / "b").mkdir()
    text = {15: "rows.append(x[batch == g].mean(0))"}
    summary = Lined(text).run(by_groups).summary(tmp_path)
    assert first(summary) in (("NSX123", 15), ("NSX126", 15)), "not the network as a whole"
    finding = next(f for f in summary.findings or () if f.code == "NSX123")
    assert [w.name for w in finding.remedies] == ["segments-at-once"]
    assert "120 launches" in finding.detail and "waits" in finding.detail
    assert (finding.saving.likely_ns or 0) > 1_000 * US
    assert not Lined(text).run(at_once).found(tmp_path / "b", "NSX123")


def test_what_a_loop_is_worth_holds_no_wait_of_another_line(tmp_path: Path) -> None:
    """Without the wait of line 16 the host would be ahead of 4 ms of GPU work: that is not the loop's."""

    def body(program: Lined, number: int) -> None:
        by_groups(program, number)
        with program.range("forward"), program.range("net:Net"):
            program.launch(4_000)
        with program.line(16):
            program.sync()
        with program.line(17):
            program.host(3_000)
        with program.range("forward"), program.range("net:Net"):
            program.launch(4_000)
        with program.line(18):
            program.sync()

    said = Lined({15: "rows.append(x[batch == g].mean(0))"}).run(body).findings(tmp_path, "NSX123")
    finding = next(f for f in said if f.where["line"] == 15)
    assert 1_000 * US < (finding.saving.likely_ns or 0) < 3_000 * US


def averaging(program: Lined, number: int) -> None:
    rest(program)
    for line in (14, 15):
        with program.line(line):
            for _ in range(40):
                program.host(12)
                program.launch(2)
    with program.line(16):
        program.sync()


def test_lines_of_one_function_with_one_remedy_are_one_thing_to_do(tmp_path: Path) -> None:
    text = {14: "averages[name].mul_(decay)", 15: "averages[name].add_(p, alpha=1 - decay)"}
    (finding,) = Lined(text).run(averaging).found(tmp_path, "NSX123")
    assert "1 line beside it" in finding.title and "80 launches" in finding.detail
    alone = Lined({15: text[15], 14: "world.advance(state)"}).run(averaging)
    (tmp_path / "b").mkdir()
    assert len(alone.found(tmp_path / "b", "NSX123")) == 2


@pytest.mark.parametrize("text", ["loss.backward()", "optimizer.step()", "scaler.step(opt)", "opt.zero_grad()"])
def test_lines_that_only_start_what_others_made_get_no_advice_of_their_own(text: str) -> None:
    assert _line_remedies.of_training(text)
    assert not _line_remedies.of_training("env.step(action)")


@pytest.mark.parametrize(
    ("text", "loads", "launches", "remedy"),
    [
        ("y = F.scaled_dot_product_attention(q, k, v)", 1, 3, "one-length-for-attention"),
        ("y = F.scaled_dot_product_attention(q, k, v)", 0.9, 3, None),
        ("y = net(x)", 1, 3, "no-kernel-built-in-a-step"),
        ("y = net(x)", 0, 3, None),
        ("rows.append(x[batch == g].mean(0))", 0, 20, "segments-at-once"),
        ("feats[i, lo:lo + w, :] = 0.0", 0, 20, "filled-by-mask"),
        ("feats[i, lo:lo + w, :] = 0.0", 0, 3, None),
        ("mask[b, n:] = True", 0, 20, "filled-by-mask"),
        ("tokens[b, : lengths[b]].fill_(self.pad_id)", 0, 20, "filled-by-mask"),
        ("scores[i, :, k:] = float('-inf')", 0, 20, "filled-by-mask"),
        ("out[i, lo:hi] = 2 * x[i]", 0, 20, "batched-operation"),  # values of its own
        ("buf[:] = 0", 0, 20, "batched-operation"),  # all of it
        ("acc = delta[t] + decay[t] * acc", 0, 20, "scan-at-once"),
        ("h = h * a[:, t] + b[:, t]", 0, 20, "scan-at-once"),
        ("h = torch.tanh(x[t] @ w + h @ u)", 0, 20, "batched-operation"),  # no scan: the rounds are not linear
        ("last = reward[t] + gamma * last * (1 - done[t + 1])", 0, 20, "scan-at-once"),
        ("h = torch.sigmoid(gates[:, t]) * h + x[:, t]", 0, 20, "scan-at-once"),
        ("h = torch.tanh(x[t] + h * w)", 0, 20, "batched-operation"),
        ("h = x[t] + (w * h).clamp(max=1)", 0, 20, "batched-operation"),
        ("h = x[t] + w[t] * h * (1 - h)", 0, 20, "batched-operation"),
        ("h = x[t] + h ** 2", 0, 20, "batched-operation"),
        ("acc = delta[t] + decay[t] * acc", 0, 2, None),  # a decay with an index is none of an average of weights
        ("x = blocks[i](x) * x", 0, 20, "batched-operation"),  # layers of a network
        ("x = x * self.gamma[i] + self.beta[i]", 0, 20, "batched-operation"),
        ("total = total + part[t]", 0, 20, "batched-operation"),  # a sum
        ("average = average * decay + p * (1 - decay)", 0, 20, "foreach-parameters"),
        ("rows.append(x[batch == g].mean(0))", 0, 19, None),
        ("y = step(x)", 0, 20, "batched-operation"),
    ],
)
def test_some_lines_are_told_only_if_they_load_or_loop(
    text: str, loads: float, launches: int, remedy: str | None
) -> None:
    fix = fix_of(Seen(text, launches=launches, loads=loads))
    assert (fix.ways[0].name if fix else None) == remedy


@pytest.mark.parametrize(("cls", "remedy"), [("LSTMCell", "sequence-at-once"), ("Linear", "batched-operation")])
def test_a_loop_over_a_recurrent_cell_is_one_call_of_its_layer(tmp_path: Path, cls: str, remedy: str) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(12, "Net.forward"), program.range("forward"), program.range("net:Net"):
            for _ in range(40):
                with program.range(f"net.cell:{cls}"):
                    for _ in range(3):
                        program.host(10)
                        program.launch(4)
        rest(program)

    (found,) = Lined({12: "h, c = self.cell(x, (h, c))"}).run(body).found(tmp_path, "NSX123")
    assert [way.name for way in found.remedies] == [remedy]
    assert ("lstm = nn.LSTM(cell.input_size" in found.remedies[0].paste) == (cls == "LSTMCell")


@pytest.mark.parametrize(
    ("text", "defines"),
    [
        ("def forward(self, x):", True),
        ("async def handle(self, request):", True),
        ("@torch.compile(dynamic=False)", True),
        ("y = defer(x)", False),
        ("y = a @ b", False),
    ],
)
def test_where_a_function_begins_its_compiled_code_runs_and_no_loop(text: str, defines: bool, tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(30, "Block.forward"), program.range("forward"), program.range("block:Block"):
            for _ in range(150):
                program.host(10)
                program.launch(4)
        program.sync()

    assert _line_remedies.defines(text) is defines
    program = Lined({30: text}).run(body)
    told = [f for f in said_of(program.write(tmp_path)) if f.verdict == "found" and f.where.get("line") == 30]
    looped = [f for f in told if "As a loop it makes" in f.detail]
    assert bool(looped) is not defines


@pytest.mark.parametrize(
    ("text", "below", "paste"),
    [
        ("self.auc(p.sigmoid(), y.long())", "torchmetrics/metric.py", "self.auc.update(p.sigmoid(), y.long())"),
        ("acc(p, y)", "torchmetrics/utilities/compute.py", "acc.update(p, y)"),
        ("value = self.auc(p, y)", "torchmetrics/metric.py", None),  # something takes the value
        ("self.auc.update(p, y)", "torchmetrics/metric.py", None),
        ("self.auc(p, y)", "mine/metrics.py", None),
    ],
)
def test_a_metric_that_is_called_for_nothing_only_counts(text: str, below: str, paste: str | None) -> None:
    fix = _line_remedies.counted_only(_line_remedies.RARELY, text, below)
    assert fix.paste == (paste or _line_remedies.RARELY.paste)
    assert ("update()" in fix.text) == (paste is not None)
    assert _line_remedies.counted_only(_line_remedies.LOGGED, text, below) == _line_remedies.LOGGED


def test_the_pasted_scan_is_the_recurrence() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random(37), rng.standard_normal(37)
    wanted = [b[0]]
    for t in range(1, len(b)):
        wanted.append(a[t] * wanted[-1] + b[t])
    joined = SimpleNamespace(cat=np.concatenate)
    names: dict[str, object] = {"a": a, "b": b, "torch": joined}
    paste = Fix.by_name("scan-at-once").paste
    exec(paste, names)
    assert paste.count("\n") < 3  # all of it is on the terminal: half of a loop would never end
    np.testing.assert_allclose(names["b"], wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "launches", "remedy"),
    [
        ("Attention.forward", 4, "forward-compiled"),
        ("Attention.forward.<locals>.<genexpr>", 4, "forward-compiled"),  # its projections, one by one
        ("Attention.forward", 0, "out-of-the-loop"),  # it prepares something on the CPU
        ("Trainer.step", 4, "out-of-the-loop"),
        ("forward_all", 4, "out-of-the-loop"),
    ],
)
def test_a_network_s_forward_cannot_leave_the_loop(function: str, launches: float, remedy: str) -> None:
    assert [way.name for way in _line_remedies.unnamed(function, launches).ways] == [remedy]
