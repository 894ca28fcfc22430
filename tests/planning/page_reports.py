"""Reports with numbers that add up, to make pages of: no planner is needed for these."""

from __future__ import annotations

from mila.planning import Mode, OptimizerKind, PlanReport, SweepReport
from mila.planning.breakdown import LINE_LABELS
from mila.planning.report import (
    Choices,
    Elsewhere,
    FullestStep,
    Limit,
    Line,
    Outcome,
    Remedy,
    SweepPoint,
    TargetKind,
    TargetSummary,
    TreeRow,
    Verdict,
)

GIB = 1 << 30
ELSEWHERE = [
    Elsewhere(key="interpreter", label="Interpreter and libraries", bytes=60_551_168, source="measured"),
    Elsewhere(key="cuda_context", label="CUDA context", bytes=None, source="depends on the driver; not measured"),
    Elsewhere(key="staging", label="Staging, on the host", bytes=8 << 20, source="fixed", is_counted=False),
]
BLOCK = ("norm_1", "qkv_proj", "out_proj", "norm_2", "mlp", "mlp.fc_gate_up", "mlp.fc_down", "attention")


def llama_rows(layers: int, width: int, hidden: int, vocabulary: int, context: int) -> list[TreeRow]:
    """The components of a Llama-like model, two bytes per number; the fullest step is in the first layer."""
    parts = {
        "norm_1": ("RmsNorm", width, 0),
        "qkv_proj": ("Linear", 3 * width * width // 2, 0),
        "out_proj": ("Linear", width * width, 0),
        "norm_2": ("RmsNorm", width, 0),
        "mlp": ("GatedMlp", 3 * width * hidden, 0),
        "mlp.fc_gate_up": ("Linear", 2 * width * hidden, 0),
        "mlp.fc_down": ("Linear", width * hidden, 0),
        "attention": ("Attention", 0, width // 2 * context),
    }
    rows = [_row("model.embedding", "TokenEmbedding", vocabulary * width, 0)]
    for layer in range(layers):
        own = [kind for name, kind in parts.items() if "." not in name]
        block = f"model.block_{layer}"
        fullest = 96 << 20 if layer == 0 else 0
        rows.append(_row(block, "LlamaBlock", sum(n for _, n, _ in own), sum(n for *_, n in own), fullest))
        for name, (kind, parameters, state) in parts.items():
            rows.append(_row(f"{block}.{name}", kind, parameters, state, fullest if name.startswith("mlp") else 0))
            fullest = 0 if name == "mlp.fc_gate_up" else fullest
    rows.append(_row("model.norm_f", "RmsNorm", width, 0))
    rows.append(_row("model.lm_head", "Linear", vocabulary * width, 0))
    top = [row for row in rows if row.depth == 1]
    total = [sum(getattr(row, name) for row in top) for name in ("parameter_bytes", "state_bytes", "fullest_bytes")]
    root = _row("model", "LlamaTransformer", total[0] // 2, total[1] // 2, total[2])
    return [root, *rows]


def _row(path: str, kind: str, parameters: int, state: int, fullest: int = 0) -> TreeRow:
    return TreeRow(
        path=path,
        depth=path.count("."),
        component=kind,
        parameter_bytes=2 * parameters,
        gradient_bytes=0,
        state_bytes=2 * state,
        transient_bytes=fullest + 4096,
        fullest_bytes=fullest,
    )


def inference_report(
    layers: int = 32,
    budget: int | None = 16 * GIB,
    context: int = 32_768,
    target: str = "llama-3.1-8b",
    rows: list[TreeRow] | None = None,
) -> PlanReport:
    """Llama 3.1 8B, by default in 16 GiB, which are too few."""
    tree = llama_rows(layers, 4096, 14_336, 128_256, context) if rows is None else rows
    root = tree[0]
    lines = _lines(
        parameters=root.parameter_bytes, cache=root.state_bytes, transient=root.fullest_bytes + 4096, alignment=192
    )
    reserved = sum(line.bytes for line in lines)
    return PlanReport(
        target=_target(target, layers, root.parameter_bytes // 2),
        choices=Choices(
            mode=Mode.INFERENCE,
            context=context,
            batch=1,
            prefill=512,
            dtype="bfloat16",
            quantize=None,
            optimizer=None,
            accumulate=None,
            device="cuda:0",
        ),
        reserved_bytes=reserved,
        lines=lines,
        parameter_bytes=root.parameter_bytes,
        state_bytes=root.state_bytes,
        gradient_bytes=0,
        fullest_step=_step("model.block_0.mlp.fc_gate_up forward", root.fullest_bytes, root.transient_bytes),
        elsewhere=ELSEWHERE,
        assumptions=["Weights and activations are stored in bfloat16.", "Logits at the last position only."],
        verdict=_verdict(reserved, budget),
        limits=[
            Limit(option="context", value=6_144, reserved_bytes=17 * GIB, is_models_limit=False),
            Limit(option="batch", value=None, reserved_bytes=None, is_models_limit=False),
        ],
        remedies=[
            Remedy(
                change="context",
                options="--context 256",
                reserved_bytes=15 * GIB,
                left_bytes=GIB,
                label="a context of 256",
            ),
            Remedy(
                change="dtype+batch",
                options="--dtype float16 --batch 1",
                reserved_bytes=14 * GIB,
                left_bytes=2 * GIB,
                label="float16",
            ),
        ],
        tree=tree,
    )


def training_report() -> PlanReport:
    """Three layers with everything that training holds, in plenty of memory."""
    report = inference_report(layers=3, budget=640 * GIB, context=1024, target="small")
    tree = [
        row.model_copy(update={"gradient_bytes": row.parameter_bytes, "state_bytes": 2 * row.parameter_bytes})
        for row in report.tree
    ]
    tree += [TreeRow(
        path="loss", depth=0, component="SoftmaxCrossEntropy", parameter_bytes=0, gradient_bytes=0, state_bytes=0,
        transient_bytes=64, fullest_bytes=64,
    )]  # fmt: skip
    size = report.parameter_bytes
    lines = _lines(parameters=size, gradients=size, moments=2 * size, transient=97 << 20, alignment=256)
    reserved = sum(line.bytes for line in lines)
    changes = {
        "mode": Mode.TRAINING,
        "prefill": None,
        "optimizer": OptimizerKind.ADAMW,
        "accumulate": 4,
        "device": "cpu",
    }
    return report.model_copy(
        update={
            "choices": report.choices.model_copy(update=changes),
            "lines": lines,
            "tree": tree,
            "reserved_bytes": reserved,
            "verdict": _verdict(reserved, 640 * GIB),
            "remedies": [],
        }
    )


def sweep_report(report: PlanReport) -> SweepReport:
    """Contexts from 1k to 128k in two dtypes; one combination has no plan."""
    points, known = [], ELSEWHERE[0].bytes or 0
    for dtype, factor in (("float32", 2), ("bfloat16", 1)):
        for context in (1024 << power for power in range(8)):
            size = factor * (report.parameter_bytes + context * (1 << 17))
            outcome = Outcome.FITS if size + known <= 40 * GIB else Outcome.DOES_NOT_FIT
            points.append(
                SweepPoint(
                    options={"context": context, "dtype": dtype},
                    reserved_bytes=size,
                    needed_bytes=size + known,
                    lines=[],
                    outcome=outcome,
                )
            )
    options: dict[str, int | str] = {"context": 2048, "dtype": "float8"}
    points.append(
        SweepPoint(
            options=options,
            reserved_bytes=None,
            needed_bytes=None,
            lines=[],
            outcome=Outcome.UNKNOWN,
            problem="no such dtype",
        )
    )
    return SweepReport(
        target=report.target,
        choices=report.choices,
        varied=["context", "dtype"],
        budget_bytes=40 * GIB,
        budget_source="as asked",
        uncounted=[ELSEWHERE[1].label],
        points=points,
    )


def _target(name: str, layers: int, parameters: int) -> TargetSummary:
    return TargetSummary(
        target=name,
        kind=TargetKind.PRESET,
        name=name,
        model_type="llama",
        parameters=parameters,
        layers=layers,
        max_context=131_072,
        stored_bytes=2 * parameters,
        stored_dtypes={"bfloat16": 2 * parameters},
        notes=["the config is the publisher's"],
    )


def _lines(**sizes: int) -> list[Line]:
    return [Line(key=key, label=label, bytes=sizes.get(key, 0), detail="of it") for key, label in LINE_LABELS.items()]


def _step(step: str, size: int, unshared: int) -> FullestStep:
    activations = size * 3 // 4
    lines = [
        Line(key="activations", label="Activations", bytes=activations),
        Line(key="activation_gradients", label="Gradients of activations", bytes=0),
        Line(key="workspace", label="Workspace", bytes=size - activations),
    ]
    return FullestStep(step=step, lines=lines, bytes=size, region_bytes=size + 4096, unshared_bytes=unshared)


def _verdict(reserved: int, budget: int | None) -> Verdict:
    needed = reserved + (ELSEWHERE[0].bytes or 0)
    if budget is None:
        return Verdict(
            outcome=Outcome.UNKNOWN,
            needed_bytes=needed,
            budget_bytes=None,
            budget_source="",
            left_bytes=None,
            uncounted=[ELSEWHERE[1].label],
        )
    outcome = Outcome.FITS if needed <= budget else Outcome.DOES_NOT_FIT
    return Verdict(
        outcome=outcome,
        needed_bytes=needed,
        budget_bytes=budget,
        budget_source="as asked",
        left_bytes=budget - needed,
        uncounted=[ELSEWHERE[1].label],
    )
