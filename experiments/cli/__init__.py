"""The command line: one file a command, from ``list`` and ``train`` to ``conformance``.

Standard output holds results; progress and refusals go to standard error. A bad value, click's own refusals
included, is one sentence and exit code 2; what fails later (the store, a loss that is not finite) is one sentence and
exit code 1; Ctrl-C is one sentence and exit code 130. Under torchrun the sentence is said once, by one of the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.exceptions import NoSuchCommand, NoSuchOption

from accum_core.errors import SHOWN, LabError, SettingError
from experiments.cli import ranks
from experiments.cli.conformance import conformance_command
from experiments.cli.evaluate import evaluate_command
from experiments.cli.finetune import finetune_command
from experiments.cli.listing import list_command
from experiments.cli.report import report_command
from experiments.cli.run import run_command
from experiments.cli.train import train_command
from experiments.cli.verify import verify_command

PROGRAM = "python -m experiments"
INTERRUPTED = 130


@click.group(invoke_without_command=True)
@click.pass_context
def group(context: click.Context) -> None:
    """Experiments on gradient accumulation: list them, train one run, or run one over its seeds."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    list_command,
    train_command,
    run_command,
    verify_command,
    report_command,
    evaluate_command,
    finetune_command,
    conformance_command,
):
    group.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` are the process's own by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = group.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.UsageError as error:
        return _end(2, _sentence(error, arguments))
    except SettingError as error:
        return _end(2, f"{_typed(error.field, arguments)} = {SHOWN.repr(error.value)}: {error.remedy}.")
    except LabError as error:
        return _end(1, str(error))
    except click.Abort:
        return _end(INTERRUPTED, "Interrupted.")
    return code if isinstance(code, int) else 0


def _end(code: int, sentence: str) -> int:
    ranks.end(sentence)
    return code


def _sentence(error: click.UsageError, arguments: Sequence[str]) -> str:
    """Click's refusal as one sentence that says where the right values are listed."""
    text, close = error.format_message(), ""
    if isinstance(error, NoSuchCommand | NoSuchOption) and error.possibilities:
        text, close = error.message, f"use {' or '.join(error.possibilities)}, or "
    program = " ".join([PROGRAM, *(argument for argument in arguments[:1] if argument in group.commands)])
    return f"{' '.join(text.split()).rstrip('.')}; {close}see {program} --help."


def _typed(field: str, arguments: Sequence[str]) -> str:
    """A field as the user of this command knows it: "--micro" for ``micro_batch_size``."""
    command = group.commands.get(arguments[0]) if arguments else None
    for parameter in command.params if command is not None else ():
        if parameter.name == field:
            return parameter.opts[0] if isinstance(parameter, click.Option) else field.upper()
    return field
