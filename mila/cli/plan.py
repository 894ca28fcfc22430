"""``mila plan``: what a model would take, and whether that fits; nothing is allocated, no weights are read."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from mila.cli import plan_options as options
from mila.cli.display import print_json, print_text
from mila.cli.documents import DocumentCommand, reading_progress
from mila.cli.failures import (
    DOES_NOT_FIT,
    INTERRUPTED,
    REFUSED,
    USAGE,
    leave,
    one_line,
    reports_errors,
    system_message,
)
from mila.cli.inspect_text import printable
from mila.cli.plan_presets import presets_report, presets_table
from mila.cli.plan_report_text import report_text, sweep_text
from mila.errors import (
    CheckpointError,
    ConfigurationError,
    MilaError,
    UnaddressableError,
    UnknownArchitectureError,
)
from mila.planning import Failure, PlanReport, PlanRequest, SweepReport, Target, read_target
from mila.planning import plan as plan_of
from mila.planning.asking import Listener
from mila.planning.report import Choices, Outcome
from mila.planning.sizes import parse_bytes, parse_count, parse_counts
from mila.planning.sweep import VARIED_OPTIONS, request_of
from mila.planning.sweep import sweep as sweep_of

_NUMBERS = ("context", "batch", "prefill")
#: Contexts of a page's curve.
_CURVE_POINTS = 12
#: How errors of the library name what is an option here.
_BARE_OPTION = re.compile(r"^(mode|context|batch|prefill|dtype|quantize|optimizer|accumulate|device|budget|sweep):")


@dataclass(frozen=True)
class _Files:
    """Where pages and pictures go; what writes them is loaded only where it is asked for."""

    html: Path | None
    plot: Path | None

    @classmethod
    def named(cls, html: str | None, plot: str | None) -> _Files:
        """As on the command line, where a name may be empty."""
        for option, name in (("--html", html), ("--plot", plot)):
            if name == "":
                raise ConfigurationError(f"{option}: expected the name of a file, got ''")
        return cls(None if html is None else Path(html), None if plot is None else Path(plot))

    def check(self) -> None:
        """Refuse names before anything is planned.

        Raises:
            ConfigurationError: other endings, or files that are something else.
            OSError: no folder to write into, or a folder of that name.
        """
        for path in (self.html, self.plot):
            if path is not None:
                _require_place(path)
        if self.html is not None:
            from mila.planning.page import check_page

            check_page(self.html)
        if self.plot is not None:
            from mila.cli.plan_plot import check_plot

            check_plot(self.plot)

    def write(self, target: Target, request: PlanRequest, report: PlanReport | SweepReport, listen: Listener) -> None:
        """Write what was asked for; a page asks for what the report does not have: a curve, or the first plan."""
        if self.html is not None:
            from mila.planning.page import write_page

            if isinstance(report, SweepReport):
                of_first = request_of(request, report.first.options)
                first, table = plan_of(target, of_first, on_question=listen), report
            else:
                first = report
                table = sweep_of(target, request, {"context": _curve(report)}, on_question=listen)
            write_page(first, self.html, sweep=table, of_sweep=isinstance(report, SweepReport))
        if self.plot is not None:
            from mila.cli.plan_plot import write_plot

            write_plot(report, self.plot)


def _require_place(path: Path) -> None:
    """Raise where no file of this name can be written."""
    code, place = 0, path.parent
    if path.is_dir():
        code, place = errno.EISDIR, path
    elif not place.is_dir():
        code = errno.ENOTDIR if place.exists() else errno.ENOENT
    elif not os.access(place, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise OSError(code, os.strerror(code), str(place))


class PlanCommand(DocumentCommand):
    """With ``--json``, wrong usage is a document too."""

    def refuse(self, message: str, targets: Sequence[str]) -> typer.Exit:
        """Print the document, and return what ends the command."""
        target = next(iter(targets), "")
        print_json(Failure(target=target, message=one_line(message), exit_code=USAGE).model_dump(mode="json"))
        return typer.Exit(USAGE)


@reports_errors
def plan(
    target: options.TargetName = None,
    mode: options.ModeName = None,
    context: options.Context = None,
    batch: options.Batch = None,
    prefill: options.Prefill = None,
    dtype: options.StoredDtype = None,
    quantize: options.Quantize = None,
    optimizer: options.Optimizer = None,
    accumulate: options.Accumulate = None,
    device: options.Device = "cpu",
    budget: options.BudgetSize = None,
    tie_word_embeddings: options.Tied = None,
    ignore_field: options.IgnoreField = None,
    tree: options.Tree = False,
    search: options.Search = True,
    sweep: options.Sweep = None,
    html: options.Html = None,
    plot: options.Plot = None,
    as_json: options.AsJson = False,
    list_presets: options.ListPresets = False,
) -> None:
    """Say how much memory a model takes, exactly, whether that fits, and what would make it fit.

    Exit codes: 0 fits, 3 does not fit, 2 cannot tell (no budget, no config, an unknown model) or wrong usage, 1 a file
    is malformed or cannot be written.
    """
    with _failures(target or "", as_json):
        if list_presets:
            _print_presets(target, as_json)
            return
        if target is None:
            raise ConfigurationError("target: expected a model, got none; `mila plan --help` says what it may be")
        if sweep and tree:
            raise ConfigurationError("--tree: is for one plan, got --sweep too")
        fields = {"mode": mode, "dtype": dtype, "quantize": quantize, "optimizer": optimizer}
        numbers = {"context": context, "batch": batch, "prefill": prefill, "accumulate": accumulate}
        ranges = _ranges(sweep or [], fields)
        request = _request(fields, numbers, ranges, device, budget)
        files = _Files.named(html, plot)
        files.check()
        with reading_progress([target], quiet=as_json, what="") as draw:
            ignored = ignore_field or ()
            found = read_target(target, tie_word_embeddings=tie_word_embeddings, ignore_fields=ignored, on_header=draw)
        report: PlanReport | SweepReport
        with _questions(quiet=as_json) as listen:
            if ranges:
                report = sweep_of(found, request, ranges, on_question=listen)
            else:
                report = plan_of(found, request, search=search, on_question=listen)
        if not as_json:  # at once: a page that cannot be written takes no plan away
            _print_lines(sweep_text(report) if isinstance(report, SweepReport) else report_text(report, tree=tree))
        with _questions(quiet=as_json or files.html is None) as listen:
            files.write(found, request, report, listen)
        if as_json:
            print_json(report.model_dump(mode="json"))
    outcome = _best(report) if isinstance(report, SweepReport) else report.verdict.outcome
    if outcome is not Outcome.FITS:
        raise typer.Exit(DOES_NOT_FIT if outcome is Outcome.DOES_NOT_FIT else USAGE)


def _print_presets(target: str | None, as_json: bool) -> None:
    if target is not None:
        raise ConfigurationError(f"--list-presets: expected no target, got {target!r:.60}")
    if as_json:
        print_json(presets_report().model_dump(mode="json"))
    else:
        print_text(f"{presets_table()}\n")


def _print_lines(text: str) -> None:
    """Names may hold anything: what moves the cursor or hides a line is shown instead, in pipes too."""
    print_text("".join(f"{printable(line)}\n" for line in text.split("\n")))


def _best(report: SweepReport) -> Outcome:
    """A sweep fits where any of its points does."""
    outcomes = {point.outcome for point in report.points if point.problem is None}
    return next(each for each in (Outcome.FITS, Outcome.DOES_NOT_FIT, Outcome.UNKNOWN) if each in outcomes)


def _curve(report: PlanReport) -> list[int | str]:
    """Contexts for the page's curve: powers of two up to the model's limit, and the one that was planned."""
    most, start = report.target.max_context, min(report.target.max_context, report.choices.prefill or 1)
    powers = [1 << power for power in range(most.bit_length()) if start <= 1 << power]
    return sorted({*powers[-_CURVE_POINTS:], report.choices.context, most})


def _ranges(sweeps: list[str], fields: dict[str, str | None]) -> dict[str, list[int | str]]:
    """What varies: by ``--sweep``, and lists of names in other options."""
    ranges: dict[str, list[int | str]] = {}
    for text in sweeps:
        option, is_there, values = text.partition("=")
        if not is_there or option not in VARIED_OPTIONS:
            known = ", ".join(VARIED_OPTIONS)
            raise ConfigurationError(f"--sweep: expected option=values with one of {known}, got {text!r:.60}")
        if option in ranges:
            raise ConfigurationError(f"--sweep: expected every option once, got {option} twice")
        where = f"--sweep {option}"
        ranges[option] = [*parse_counts(where, values)] if option in _NUMBERS else [*_names(where, values)]
    for option, value in fields.items():
        if value is None:
            continue
        if option in ranges:
            raise ConfigurationError(f"--{option}: is given by --sweep too")
        if not value.strip():
            raise ConfigurationError(f"--{option}: expected a name, got {value!r:.60}")
        if "," in value:
            ranges[option] = [*_names(f"--{option}", value)]
    return ranges


def _names(where: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigurationError(f"{where}: expected names by commas, got {text!r:.60}")
    return list(dict.fromkeys(names))


def _request(
    fields: dict[str, str | None],
    numbers: dict[str, str | None],
    ranges: dict[str, list[int | str]],
    device: str,
    budget: str | None,
) -> PlanRequest:
    """All that does not vary."""
    values: dict[str, Any] = {name: value for name, value in fields.items() if value is not None and name not in ranges}
    for name, text in numbers.items():
        if text is not None and name in ranges:
            raise ConfigurationError(f"--{name}: is given by --sweep too")
        if text is not None:
            values[name] = parse_count(f"--{name}", text)
    modes = ranges.get("mode", [values.get("mode", "inference")])
    if "optimizer" in values and "training" not in modes:
        raise ConfigurationError(f"--optimizer: is for training, got {values['optimizer']!r:.60} in inference")
    if budget is not None:
        values["budget"] = parse_bytes("--budget", budget)
    return PlanRequest.model_validate({**values, "device": device})


@contextmanager
def _failures(target: str, as_json: bool) -> Iterator[None]:
    """Turn what is raised into one line or one document, and an exit code.

    Wrong options are a use that tells nothing, whichever error says so; only files are refused.
    """
    try:
        yield
    except BrokenPipeError:  # nobody reads on
        raise
    except (MilaError, ValidationError, OSError) as error:
        is_file = isinstance(error, CheckpointError | OSError) and not isinstance(error, UnknownArchitectureError)
        is_too_much = isinstance(error, UnaddressableError)
        code = REFUSED if is_file else DOES_NOT_FIT if is_too_much else USAGE
        raise _failed(code, _message(error), target, as_json) from error
    except KeyboardInterrupt as error:
        raise _failed(INTERRUPTED, "interrupted", target, as_json) from error


def _failed(code: int, message: str, target: str, as_json: bool) -> typer.Exit:
    if not as_json:
        return leave(code, message)
    print_json(Failure(target=target, message=one_line(message), exit_code=code).model_dump(mode="json"))
    return typer.Exit(code)


def _message(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return _first_line(error)
    if isinstance(error, OSError) and not isinstance(error, MilaError):
        return system_message(error)
    return _BARE_OPTION.sub(r"--\1:", str(error))


def _first_line(error: ValidationError) -> str:
    """The first field that is refused, as an option."""
    first = error.errors()[0]
    return f"--{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}, got {first['input']!r:.60}"


@contextmanager
def _questions(*, quiet: bool) -> Iterator[Listener]:
    """Show on standard error what the graph is asked, where that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda choices: None
        return
    with console.status("planning") as status:

        def listen(choices: Choices) -> None:
            status.update(f"planning: context {choices.context:,}, batch {choices.batch:,}, {choices.dtype}")

        yield listen
