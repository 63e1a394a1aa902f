"""What the reader of the page of frameworks chose, as the page's address. Pure: no Streamlit.

``/frameworks?framework=transformers&kind=causal&case=unequal_tokens&results=here``: a framework alone shows all of its
kinds, a case alone all frameworks in it, both open one cell. The address alone rebuilds the page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from accum_core.conformance.results import Row
from accum_core.errors import SettingError

HERE = "here"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the page shows.

    Attributes:
        framework, case: names; "" for all.
        kind: of module, head or loader; "" for the framework's first.
        results: "here" for those of this machine, "" for the committed ones.
    """

    framework: str = ""
    case: str = ""
    kind: str = ""
    results: str = ""


def read(address: Mapping[str, str], committed: Collection[Row], here: Collection[Row]) -> Choice:
    """The choice that an address asks for.

    Args:
        committed, here: the two kinds of results, each of which may be none.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    results = address.get("results", "")
    if results not in ("", HERE):
        raise SettingError("results", results, f"must be {HERE}, or be left out for the committed results")
    if results == HERE and not here:
        raise SettingError("results", results, "has nothing to show, as nothing was run on this machine; leave it out")
    rows = here if results == HERE else committed or here
    framework, case, kind = (address.get(name, "") for name in ("framework", "case", "kind"))
    _known("framework", framework, [row.framework for row in rows])
    mine = [row for row in rows if framework in ("", row.framework)]
    _known("case", case, [row.case for row in mine])
    if kind and not framework:
        raise SettingError("kind", kind, "is a kind of one framework; name the framework as well")
    _known("kind", kind, [row.kind for row in mine if case in ("", row.case)])
    return Choice(framework, case, kind, results)


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice."""
    named = {
        "framework": choice.framework,
        "kind": choice.kind,
        "case": choice.case,
        "results": choice.results,
    }
    return {name: value for name, value in named.items() if value}


def link(choice: Choice) -> str:
    """The choice as a link from the page to itself."""
    return f"?{urlencode(address(choice))}"


def _known(field: str, name: str, known: Collection[str]) -> None:
    if name and name not in known:
        raise SettingError(field, name, f"is not among the results; use one of {', '.join(dict.fromkeys(known))}")
