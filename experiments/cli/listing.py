"""``list``: the experiments there are."""

from __future__ import annotations

import json

import click

from experiments import discover


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_command(as_json: bool) -> None:
    """List the experiments with their questions, presets and claims."""
    experiments = discover().values()
    if as_json:
        click.echo(json.dumps([experiment.describe() for experiment in experiments], indent=1))
        return
    for experiment in experiments:
        click.echo(f"{experiment.name}: {experiment.title} ({experiment.paper})")
        click.echo(f"  {experiment.question}")
        for name, preset in experiment.presets.items():
            click.echo(f"  preset {name}: {preset.summary}")
        for claim in experiment.claims:
            click.echo(f"  claim {claim.id}: {claim.statement}")
