"""Commands that print one report, or say why there is none, as a line or as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from mila.cli.display import loading_progress, print_json
from mila.cli.failures import INTERRUPTED, USAGE, leave, one_line, system_message
from mila.errors import ConfigurationError, MilaError
from mila.planning.inspection_report import Refusal
from mila.planning.targets import HUB_PREFIX

#: What all wrong uses of a command line have in common; Typer has no name for it.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


class DocumentCommand(TyperCommand):
    """With ``--json``, wrong usage is a document too."""

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **extra: Any) -> Any:
        """Read the command line."""
        given = list(args)
        try:
            return super().make_context(info_name, args, *others, **extra)
        except _USAGE_ERROR as error:
            if "--json" not in given:
                raise
            message = str(getattr(error, "format_message", error.__str__)())
            raise self.refuse(message, self._targets(given)) from error

    def _targets(self, given: Sequence[str]) -> list[str]:
        """What is no option and no option's value."""
        with_value = {name for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}
        before = ["", *given]
        return [
            part
            for part, previous in zip(given, before, strict=False)
            if not part.startswith("-") and previous not in with_value
        ]

    def refuse(self, message: str, targets: Sequence[str]) -> typer.Exit:
        """Print the document, and return what ends the command."""
        return _refused(USAGE, message, targets, True)


def reading_progress(
    targets: Sequence[str], *, quiet: bool, what: str
) -> AbstractContextManager[Callable[[int, int], None]]:
    """Give what draws how much is done.

    Args:
        targets: what was named; of the hub headers are counted, or values in its cache where it is offline.
        quiet: draw nothing.
        what: is done with values; nothing where it is empty.
    """
    is_on_hub = any(target.startswith(HUB_PREFIX) for target in targets)
    return loading_progress(quiet=quiet or not (is_on_hub or what), what="reading" if is_on_hub else what)


@contextmanager
def refusals_of(targets: Sequence[str], as_json: bool, *, refused: int) -> Iterator[None]:
    """Turn what is raised into one line or one document, and an exit code.

    Args:
        targets: what was named.
        as_json: print a document.
        refused: the exit code of files that are malformed; what names none is wrong usage.
    """
    try:
        yield
    except MilaError as error:
        code = USAGE if isinstance(error, ConfigurationError) else refused
        raise _refused(code, str(error), targets, as_json) from error
    except BrokenPipeError:  # nobody reads on
        raise
    except OSError as error:
        raise _refused(refused, system_message(error), targets, as_json) from error
    except KeyboardInterrupt as error:
        raise _refused(INTERRUPTED, "interrupted", targets, as_json) from error


def _refused(code: int, message: str, targets: Sequence[str], as_json: bool) -> typer.Exit:
    if not as_json:
        return leave(code, message)
    refusal = Refusal(targets=list(targets), message=one_line(message), exit_code=code)
    print_json(refusal.model_dump(mode="json"))
    return typer.Exit(code)
