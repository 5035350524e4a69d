"""What can be done about a line of Python that the GPU waits for, by what the line calls and what it does to the GPU.

The first row that fits counts: what the capture shows goes before what the text says.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.findings._finding_bounds import LOOP_LAUNCHES, QUOTED_LINE_LETTERS
from nsysx.findings._fix import Fix


class Seen(NamedTuple):
    """What is known of a line: its text, and its loads of kernels, launches and waits in a step."""

    text: str
    loads: float = 0.0
    launches: float = 0.0
    waits: float = 0.0


class _Kind(NamedTuple):
    """A remedy, the text of lines that it is for, and whether they load a kernel in each step, make launches as a loop does, or wait."""

    remedy: str
    text: str
    loads: bool = False
    loops: bool = False
    waits: bool = False


_PARAMETERS = (
    r"\b(named_)?parameters\(\)|\bstate_dict\(|\b(ema|shadow|average)\w*\b|\bdecay\w*\b(?!\s*\[)|(?<!autograd)\.grad\b"
)
#: A round of a linear recurrence: what the line assigns is once a factor in it and goes through no function, and a sequence is taken by its
#: index. What is taken from an object is its layers'.
_RECURRENCE = (
    r"^\s*(?P<kept>[^\W\d]\w*)\s*=(?!=)"
    r"(?=.*(?:(?<!\*)\*\s*\b(?P=kept)\b|\b(?P=kept)\b\s*\*(?!\*)))(?!.*\b(?P=kept)\b.*\b(?P=kept)\b)"
    r"(?!.*(?:\w\((?:[^()]|\([^()]*\))*\b(?P=kept)\b|\b(?P=kept)\s*[.\[(]|\b(?P=kept)\b[^()]*\)\s*(?:\.|\*\*)))"
    r"(?=.*(?<![.\w])\w+\[\s*(?:[^\[\]]*,\s*)?[a-z]\w?\s*(?:[-+]\s*\d+\s*)?(?:,[^\[\]]*)?\](?!\())"
)
#: A part of a tensor, whose bounds are variables, is set to one value.
_FILLS = (
    r"[\w\])]\[(?:[^\[\]]|\[[^\[\]]*\])*(?:[A-Za-z_]\w*\s*:(?!:)|:\s*[A-Za-z_])(?:[^\[\]]|\[[^\[\]]*\])*\]\s*"
    r"(?:=\s*(?:-?[\d.]+(?:e-?\d+)?|True|False|float\([^()]*\)|-?(?:math|np|torch)\.inf|[\w.]*(?:pad|fill|mask)\w*)\s*$|"
    r"\.(?:zero_|fill_)\()"
)
#: What is put together with more is that again: other inputs of a round that are joined grow nothing.
_GROWS = r"^\s*(?P<grown>[A-Za-z_][\w.]*)\s*=(?!=)\s*torch\.(cat|concat)\(.*(?<![\w.])(?P=grown)(?!\s*[\w.(])"
_LIST = r"\[(?:[^\[\]]|\[[^\[\]]*\])*\bfor\b"
#: A draw with replacement in which items have weights of their own, and what comes before these.
_WEIGHTED = (
    r"\bmultinomial\((?=.*\breplacement\s*=\s*True)|(?!.*replace\s*=\s*False)(\brandom\.|\b\w*rng\.)"
    r"(choice\(.*\bp\s*=(?!\s*None)|choices\(.*\b(cum_)?weights\s*=(?!\s*None)|choices\([^,()]*(\([^()]*\))?,(?!\s*\w+\s*=)|"
    r"multinomial\([^,]*,)"
)
#: Distributions whose arguments, and whose values, torch checks when they are made and asked, and how they are asked.
ARGUMENTS_CHECKED = (
    r"\.(log_prob|cdf|icdf)\(|\b(Categorical|OneHotCategorical\w*|Normal|LogNormal|MultivariateNormal|LowRankMultivariateNormal|Bernoulli|"
    r"Beta|Gamma|Dirichlet|Uniform|Laplace|Cauchy|StudentT|Poisson|Exponential|Gumbel|RelaxedBernoulli|RelaxedOneHotCategorical|Independent|"
    r"MixtureSameFamily|TransformedDistribution|VonMises|Weibull|Binomial|Multinomial|NegativeBinomial|Geometric|HalfNormal)\("
)
_KINDS = tuple(
    _Kind(*row)
    for row in (
        ("one-length-for-attention", r"scaled_dot_product_attention", True),
        ("no-kernel-built-in-a-step", r"", True),
        ("segments-at-once", r"\[[^\]]*(==|[Mm]ask)[^\]]*\]", False, True),
        ("no-sleep", r"\bsleep\("),
        ("iterator-once", r"\bnext\(\s*iter\("),
        ("groups-once", r"\bnew_(sub)?groups?\w*\("),
        ("wrapped-once", r"\b(DDP|DistributedDataParallel|FSDP|FullyShardedDataParallel|fully_shard)\((?!\))|\b[Aa]ccelerator\.prepare\("),
        (
            "made-once",
            r"^(?!.*\bfit\().*(\btorch\.compile\(|\boptim\.[A-Z]\w*\(|\b(Adam|AdamW|SGD|RMSprop)\(|"
            r"\binit_device_mesh\(|\bDeviceMesh\()",
        ),
        ("drawn-on-gpu", r"\bnegative_sampling\("),
        ("masked-in-workers", r"\b_?(compute_mask|sample_negative)_(indices|inds|idxs)\("),
        (
            "filters-once",
            r"(?i)\b\w*filter_?banks?\(|\bfilters\.mel\(|\bmel(scale)?_fbanks?\(|\b\w*fbanks?_matrix\(|\bget_window\(|"
            r"\b(hann|hamming|blackman|kaiser|bartlett)(_window|ing)?\(",
        ),
        ("independent-normal", r"\bMultivariateNormal\("),
        ("no-collect", r"\bgc\.collect\(|\bempty_cache\("),
        ("drawn-rarely", r"\bplt\.|\bsavefig\(|\bsave_image\(|\bmake_grid\(|\bimwrite\(|\badd_(images?|figure|video|embedding|graph)\("),
        ("pairs-at-once", r"\blinear_sum_assignment\("),
        ("symmetric-eigenvalues", r"\b(linalg\.)eig(vals)?\(|\bsqrtm\("),
        ("histograms-rarely", r"\b(np|numpy)\.(histogram\w*|percentile|quantile)\(|\badd_histogram\(|\bwandb\.Histogram\("),
        ("no-process-in-a-step", r"\bsubprocess\.|\bos\.(system|popen)\(|\bcheck_output\(|\bPopen\("),
        ("statistics-averaged", r"\bupdate_bn\("),
        ("own-state-saved", r"\bconsolidate_state_dict\("),
        ("shards-saved", r"\bget_(model_|optimizer_)?state_dict\(|\bfull_state_dict\s*=\s*True|\bFullStateDictConfig\(|\bdcp\.save\("),
        (
            "networks-kept",
            r"\bload_state_dict\(.*\b(load|load_file|read)\(|\b(torch\.load|load_file)\(.*(?i:ckpt|checkpoint|weights|state_dict|_sd\b)|"
            r"\w*(Model|Net|Policy|LM|Encoder|Decoder|Transformer|Pipeline)\w*\.from_pretrained\(|\bload_from_checkpoint\(",
        ),
        ("saved-aside", r"\btorch\.save\(|\bsave_pretrained\(|\bsave_checkpoint\("),
        ("shards-kept", r"\.full_tensor\(|\bsummon_full_params\("),
        ("logged-apart", r"\bsync_dist\s*=\s*True"),
        ("gradients-in-buckets", r"\ball_reduce\w*\(.*grads?\b"),
        ("counted-apart", r"\ball_gather\w*\(.*(?i:pred|prob(s|abilit)|score|target|label|truth|\bmasks?\b)"),
        ("tensors-gathered", r"gather_object\("),
        (
            "own-part-of-data",
            r"\bscatter\w*\(.*(batch|data|input|image|\bx\b)|\b(scatter|broadcast)_object_list\(|"
            r"\bbroadcast\(\s*(tensor\s*=\s*)?\w*(batch|image|input|sample|clip|video|frames|audio|wave)(?!_?(size|stats?|norm|mean))",
        ),
        ("collective-rarely", r"\b\w*barrier\(|\ball_(reduce|gather)\w*\(|\bbroadcast\w*\("),
        ("features-on-gpu", r"(?i)extractor\(|\b(\w*_)?processor\(|spectrogram\(|\bmfcc\("),
        ("tokens-once", r"(?i)tokeniz|\bencode_plus\(|\bbatch_encode\w*\("),
        (
            "decoded-in-workers",
            r"\bImage\w*\.|\bcv2\.|\bPIL\.|\bTF\.|\bto_tensor\(|\bim(read|decode)\(|(?i:\baugment|\baug\(|\btransforms?\b|\bdecode_)",
        ),
        (
            "parsed-once",
            r"\b(json|yaml|csv|pickle|torch|np|numpy|librosa|torchaudio)\.\w*load\w*\(|\b(json|yaml)\.dumps?\(|\bread_\w+\(|"
            r"\bliteral_eval\(|\bh5py\.|\bmemmap\(|\bfromfile\(|\bopen\(|\bload_dataset\(|\.readlines?\(",
        ),
        ("table-once", r"\.(iloc|loc|iat|at)\[|\.iter(rows|tuples)\("),
        (
            "converted-on-gpu",
            r"\b(as_?tensor|tensor|as_?array|array|astype)\([^\[\]]*\bfloat(32)?\b[^\[\]]*\)[^\[\]]*/\s*\(?\s*(255|127|256)",
        ),
        # [critic(x) for critic in self.critics]
        ("stacked-models", r"\b(?P<called>\w+)\(.*\bfor\s+(?:\w+\s*,\s*)*(?P=called)\b", False, True),
        (
            "arrays-once",
            rf"\b(torch\.(as_)?tensor|np\.(as)?array|numpy\.(as)?array|\w*Tensor)\(\s*{_LIST}|"
            rf"\b(torch|np|numpy)\.stack\(\s*{_LIST}|\btorch\.tensor\(|\btorch\.(Float|Double|Long|Int)Tensor\(\s*[A-Za-z_]",
        ),
        ("no-lock", r"\.acquire\(|\.join\(\s*(timeout\s*=[^)]*)?\)|\bwith \w*lock\b"),
        ("batch-as-it-is", r"\.(append|extend)\(.*\.get\(.*\btimeout\b"),
        ("delivered-sooner", r"\b\w*(queue|_q|q)\.get\(|\.get\(\s*(timeout\s*=[^)]*)?\)|\.result\(|\.recv\w*\("),
        (
            "metrics-rarely",
            r"\b\w*(roc_auc|f1|accuracy|precision|recall|bleu|rouge|jaccard)_score\(|\bconfusion_matrix\(|\bclassification_report\(|"
            r"\b(edit_?distance|levenshtein\w*|wer|cer)\(",
        ),
        ("drawn-by-weight", _WEIGHTED),
        (
            "arrays-for-objects",
            r"(?<!np\.)(?<!numpy\.)\b(random|rng)\.(sample|choices)\(\s*(?!range\()|\[\s*[\w.]+\[(?P<at>\w+)\]\s+for\s+(?P=at)\s+in\b|"
            r"\b(np|numpy|torch)\.(stack|array|asarray|tensor|as_tensor|cat)\b.*\bzip\(\s*\*",
        ),
        (
            "drawn-without-permutation",
            r"\b(np|numpy)\.random\.choice\((?!.*\bp\s*=).*replace\s*=\s*False|\b(random|rng)\.permutation\(.*\)\s*\[\s*:",
        ),
        (
            "picked-on-gpu",
            r"\brandperm\((?!.*cuda).*\)\s*\[\s*:|\brandom\.(choice(?!.*\bp\s*=(?!\s*None))|permutation|shuffle|sample)\(|"
            r"\brng\.(choice(?!.*\bp\s*=(?!\s*None))|permutation|shuffle)\(",
        ),
        ("ranked-on-gpu", r"\b(np|numpy)\.(arg)?(sort|partition)\("),
        ("sample-on-gpu", r"\b(np|numpy)\.(cumsum|searchsorted|argmax|exp)\b|\brng\."),
        ("checked-rarely", r"\bis_?(finite|nan|inf|nonzero)\(|^\s*assert\b"),
        ("validate-args-off", ARGUMENTS_CHECKED, False, False, True),
        ("drawn-by-noise", r"\bmultinomial\([^,]*,\s*(num_samples\s*=\s*)?1\b|\b\w*(dist|policy|pi)\w*\.sample\(\s*\)", False, False, True),
        ("keep-on-gpu", r"\.(item|tolist|cpu|numpy)\(|\.to\(\s*[\"']cpu|\b(float|int|bool)\(\w+"),
        (
            "fixed-shape",
            r"\bnonzero\(|\bargwhere\(|\bmasked_select\(|\bunique\w*\(|\bwhere\([^,()]*\)|\[[^\]]*mask[^\]]*\]|repeat_interleave\(",
        ),
        ("fixed-shape", r"[\w)\]]\[[^\[\]]*([=!<>]=|[<>~])[^\[\]]*\]", False, False, True),
        (
            "logged-rarely",
            r"\bprint\(|\blog(ger|ging)?\.|\.log_(dict|metrics|scalars?|hyperparams)\(|\bself\.log\(|\bwandb\b|"
            r"\badd_(scalars?|text)\(|\bset_(postfix|description)\w*\(|\.(write|writerow|flush)\(|\bmemory_(stats|summary)\(|"
            r"\b(pynvml|psutil)\b|\bnvml\w*\(|\bhashlib\.",
        ),
        ("copied-in-place", r"\bdeepcopy\("),
        # acc = delta[t] + decay[t] * acc
        ("scan-at-once", _RECURRENCE, False, True),
        # The gradients of all parameters are clipped in one call unless foreach=False.
        ("foreach-parameters", rf"^(?!.*clip_grad_norm_\((?!.*foreach=False)).*({_PARAMETERS})"),
        ("filled-by-mask", _FILLS, False, True),
        ("preallocated", _GROWS),
        ("kept-constant", r"\b(tril|triu|arange|linspace|meshgrid|eye|ones|zeros|full)\(.*\.(to|cuda)\("),
        ("made-on-gpu", r"\brand(n|int|perm|om)?\w*\(|\bshuffle\(|\bsample\((?!\s*\))"),
        (
            "numpy-on-gpu",
            r"\b(np|numpy|scipy|pd|sklearn|ndimage)\.|\bc?KDTree\(|\btree\.query\w*\(|\.kneighbors\(|\b(NearestNeighbors|KMeans)\(",
        ),
    )
)  # fmt: skip


#: What is said about a loop of which nothing better is known.
BATCHED = Fix.by_name("batched-operation")
#: What is said about a loop that sets parts of a tensor to one value.
FILLED = Fix.by_name("filled-by-mask")
#: What is said about a line that calls one network after the other.
STACKED = Fix.by_name("stacked-models")
#: With these one operation takes the place of all rounds of a loop.
IN_ONE = (BATCHED, FILLED, STACKED)
#: What is said about a loop that puts tensors together.
PREALLOCATED = Fix.by_name("preallocated")


def weights_of(text: str) -> frozenset[str]:
    """Return the names from which a line takes the weights that it draws by, none where it draws by none."""
    drawn = re.search(_WEIGHTED, text)
    return (
        frozenset(re.findall(r"[A-Za-z_]\w*(?!\w*\s*[(.=\w])", text[drawn.end() :].partition(",")[0]))
        if drawn
        else frozenset()
    )


def quoted(text: str) -> str:
    """Return what of a line is quoted."""
    return text if len(text) <= QUOTED_LINE_LETTERS else f"{text[: QUOTED_LINE_LETTERS - 3].rstrip()}..."


def fix_of(seen: Seen, among: frozenset[str] = frozenset()) -> Fix | None:
    """Return what can be done about a line, None where that is not known. ``among``: these remedies alone, if there are any."""
    for kind in _KINDS:
        if among and kind.remedy not in among:
            continue
        if (
            (kind.loads and seen.loads < 1)
            or (kind.loops and seen.launches < LOOP_LAUNCHES)
            or (kind.waits and seen.waits < 1)
        ):
            continue
        if re.search(kind.text, seen.text):
            return Fix.by_name(kind.remedy)
    return BATCHED if seen.launches >= LOOP_LAUNCHES else None


#: What can be done about a line by what it runs of packages: the file below the folder of packages, ":" and the function; the first
#: that fits counts. A trainer's own loop is none of them: it runs the steps.
_BY_PACKAGE = (
    (
        "callbacks-rarely",
        r"^(lightning|lightning_fabric|pytorch_lightning|fastai|composer|ignite)/.*"
        r"(callback|loggers?/|logger_connector|progress|csv_logs|tensorboard|LightningModule\.log|\b_?log_\w+$)|"
        r"^transformers/(trainer_callback|integrations/integration_utils|trainer\.py:Trainer\.(log|_maybe_log))",
    ),
    ("metrics-rarely", r"^(torchmetrics|sklearn/metrics|torcheval|evaluate|sacrebleu|jiwer|rouge_score|pycocotools)/"),
    ("tokens-once", r"^(tokenizers|sentencepiece|tiktoken|nltk|spacy)/|^transformers/.*token"),
    ("features-on-gpu", r"^transformers/.*(feature_extraction|image_processing|audio_utils)|^torchaudio/"),
    ("decoded-in-workers", r"^(PIL|cv2|skimage|imageio|albumentations|torchvision/(transforms|io)|decord|av)/"),
    ("drawn-rarely", r"^(matplotlib|seaborn|plotly)/"),
    ("logged-rarely", r"^(wandb|tensorboard|tensorboardX|mlflow|loguru|tqdm|rich|psutil|pynvml)/"),
    ("table-once", r"^(pandas|polars|pyarrow)/"),
    ("parsed-once", r"^(h5py|zarr|netCDF4|xarray|lmdb|datasets|librosa|soundfile|yaml|orjson)/"),
    ("numpy-on-gpu", r"^(numpy|scipy|sklearn|networkx|rdkit|numba)/"),
)


def fix_by_package(function: str) -> Fix | None:
    """Return what can be done about a line that runs a function of a package, "FILE:FUNCTION" below the folder of packages; None if
    unknown.
    """
    return next((Fix.by_name(remedy) for remedy, pattern in _BY_PACKAGE if re.search(pattern, function)), None)


#: Such lines run what others made: the networks, their gradients and the optimizer have rules of their own.
_OF_TRAINING = re.compile(r"\.backward\(|\b(opt\w*|scaler|scheduler|sched)\.(step|zero_grad|update)\(|\.zero_grad\(")


def of_training(text: str) -> bool:
    """Return whether a line only starts the backward pass or the optimizer: nothing can be done about the line."""
    return _OF_TRAINING.search(text) is not None


#: The line that defines a function, or a decorator of it.
_DEFINES = re.compile(r"^\s*((async\s+)?def\s+\w+\s*[\[(]|@[\w.]+)")


def defines(text: str) -> bool:
    """Return whether a function begins at a line: Python runs none of it there, but compiled code has no other line."""
    return _DEFINES.search(text) is not None


#: The function of a class of tensors, or of a mode, through which every operator passes.
_INTERCEPTS = re.compile(r"(^|\.)__torch_(function|dispatch)__$")


def unnamed(function: str, launches: float) -> Fix:
    """Return what is said about a line of which nothing better is known, by its function, and how many launches it makes in a step."""
    return FORWARD if launches >= 1 and "forward" in function.split(".") else ANY


def intercepts(function: str) -> bool:
    """Return whether operators of torch pass through a function of the program: what its lines cost is that they do."""
    return _INTERCEPTS.search(function) is not None


#: What is said about the lines of such a function.
PLAIN = Fix.by_name("plain-tensors")
#: What is said about a line of which nothing better is known.
ANY = Fix.by_name("out-of-the-loop")
#: The same where it is a network's forward, which has to run where it is.
FORWARD = Fix.by_name("forward-compiled")
#: Nothing is known about what such lines do.
NOT_KNOWN = (ANY, FORWARD)
#: What of the time goes by these depends on what stands elsewhere: no more than a bound is known.
CALLBACKS = Fix.by_name("callbacks-rarely")
DELIVERED = Fix.by_name("delivered-sooner")
OPEN = (DELIVERED, CALLBACKS)
#: What is said about a line whose results no gradient needs, if nothing better is known; LOGGED is for one that only writes.
RARELY, LOGGED = Fix.by_name("metrics-rarely"), Fix.by_name("logged-rarely")
#: A metric that is called for itself: nothing takes the value that it returns.
_CALLED_METRIC = re.compile(r"(self\.[\w.]+|\w+)(?<!\.update)\((.*)\)")
#: What is said about a line that writes a checkpoint.
SAVED = Fix.by_name("saved-aside")
#: With these such a line is not run in most steps.
LEFT_OUT = (RARELY, LOGGED, Fix.by_name("checked-rarely"))


def counted_only(fix: Fix, text: str, below: str) -> Fix:
    """Return the advice to compute a metric rarely in the line's own code, where that calls a metric of torchmetrics for nothing.

    Such a call computes the metric of this batch; ``update`` only counts. ``below``: the file of packages in which it takes most time.
    """
    called = _CALLED_METRIC.fullmatch(text.strip()) if below.startswith("torchmetrics/") else None
    if fix != RARELY or called is None:
        return fix
    return fix.but(
        text="Count here with update(), and compute() once at the end (self.log of Lightning does it at the end of an epoch): the call "
        "computes this metric for the batch in each step, and nothing takes its value",
        paste=f"{called[1]}.update({called[2]})",
    )
