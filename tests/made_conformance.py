"""Results of frameworks made up for tests of what reads them: the numbers are chosen, nothing was trained."""

from __future__ import annotations

from typing import Any

from made_results import ENVIRONMENT

from accum_core.conformance.results import Results, Right, Row

EXPLAINED = "Each micro-batch's mean is divided by N, however many tokens it holds."
MENDED = "Sum the loss and divide by the window's tokens."
SCHEDULE = Right(updates=4, final_lr=0.00081, logged=())


def row(framework: str, case: str, verdict: str = "exact", **other: Any) -> Row:
    """One cell; an exact one by default, of one update at a rate of 0.1."""
    plain: dict[str, Any] = {
        "version": "1.2.3",
        "kind": "own",
        "gradient_error": 3e-16 if verdict == "exact" else 1.2034,
        "updates": 1,
        "final_lr": 0.1,
        "formula": "sum over weight" if verdict == "exact" else "mean of means over N",
        "explanation": "As one batch." if verdict == "exact" else EXPLAINED,
        "seconds": 1.0,
        "right": Right(updates=1, final_lr=0.1, logged=(3.25,)),
    }
    return Row(framework=framework, case=case, verdict=verdict, **plain | other)


def usual() -> Results:
    """Our own loop, exact in three cases; Accelerate, which leaves the division to its users; Lightning, wrong in two;
    Keras, which refuses one; and a framework that this project has no file of, with two kinds."""
    mended = {"mend": MENDED, "mended_error": 2e-16, "mended_verdict": "exact"}
    return Results(
        results=(
            row("accum_core", "equal"),
            row("accum_core", "unequal_tokens"),
            row("accum_core", "schedule", updates=4, final_lr=0.00081, right=SCHEDULE),
            row("accelerate", "equal"),
            row("accelerate", "unequal_tokens", "user's duty", **mended),
            row("accelerate", "schedule", updates=4, final_lr=0.00081, right=SCHEDULE),
            row("lightning", "equal"),
            row("lightning", "unequal_tokens", "wrong", gradient_error=0.5, **mended),
            row("lightning", "schedule", "wrong", gradient_error=0.25, updates=4, final_lr=0.1, right=SCHEDULE),
            row("keras", "equal"),
            row("keras", "unequal_tokens", "refuses", gradient_error=None, updates=None, final_lr=None, formula=None),
            row("<b>made</b>", "equal", kind="first"),
            row("<b>made</b>", "unequal_tokens", "wrong", kind="first", gradient_error=0.035, formula=None),
            row("<b>made</b>", "unequal_tokens", kind="second"),
        ),
        environment=ENVIRONMENT,
    )
