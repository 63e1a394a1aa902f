"""The cards of the pitfalls page: every reported fault is on one, and its two scripts print what was reported.

The values that the cards expect come from the reports and from arithmetic on the scripts' few numbers. All scripts are
run here, many in one process; the ranks of the distributed ones are processes of their own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import ROOT, wait_until
from torch.nn.functional import cross_entropy

from accum_core import pitfalls
from accum_core.errors import DataError, SettingError
from accum_core.pitfalls import SIDES, Card, Outcome, Output, ScriptError

ROWS = (
    "S1 S2 S3 S4 S5 S7 S8 S10 S11 T12 T13 T14 T15 T17 C19 C20 C21 C23 C24 C26 P27 P29 P30 P47 D34 D35 D37 D38 D45 "
    "B39 B41 B42 B43 B46 R48 R50 R53"
).split()
CARDS = pitfalls.load().cards
IDS = [card.id for card in CARDS]
# DistributedDataParallel imports this, in each rank anew unless their parent has it.
RUNNER = "import sys, torch._dynamo; from accum_core import pitfalls; pitfalls.main(sys.argv[1:])"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, str]]:
    """What each script printed, or how it failed: by card and side."""
    folder = tmp_path_factory.mktemp("scripts")
    names: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for card in CARDS:
        for side in SIDES:
            (folder / f"{card.id}_{side}.py").write_text(getattr(card, side))
            names["start_processes" in getattr(card, side)].append((card.id, side))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RUNNER, *(str(folder / f"{name}_{side}.py") for name, side in members)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for members in names.values()
    ]
    found: dict[tuple[str, str], dict[str, str]] = {}
    for members, process in zip(names.values(), running, strict=True):
        found |= zip(members, json.loads(process.communicate(timeout=240)[0]), strict=True)
    return found


@pytest.fixture
def alone() -> Iterator[None]:
    """Nobody else's outcomes, before and after."""
    pitfalls._newest.clear()
    yield
    pitfalls._newest.clear()


def made(wrong: str, right: str = "print('result = 1')", name: str = "x1") -> Card:
    """A card with other scripts."""
    return CARDS[0].model_copy(update={"id": name, "wrong": wrong, "right": right})


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", IDS)
def test_scripts_print_what_was_reported(printed: dict[tuple[str, str], dict[str, str]], name: str, side: str) -> None:
    """S1 to R53, each by the card that holds it."""
    card = pitfalls.load().card(name)
    reply = printed[name, side]
    assert reply["error"] == ""
    last = re.fullmatch(r"result = \[?([^\]]+)\]?", reply["printed"].splitlines()[-1])
    assert last, reply["printed"]
    expected = getattr(card, f"expected_{side}")
    values = expected if isinstance(expected, tuple) else (expected,)
    assert [float(part) for part in last[1].split(",")] == pytest.approx(values, rel=0, abs=card.tolerance, nan_ok=True)


def test_s5_a_masked_mean_written_by_hand_has_no_finite_gradient() -> None:
    """0 / 0 passes nan back, where torch's own mean over no labels passes 0."""
    inputs, none = torch.ones(1, 2), torch.tensor([-100])
    for by_hand in (True, False):
        weight = torch.zeros(2, 2, requires_grad=True)
        if by_hand:
            losses, mask = cross_entropy(inputs @ weight, none.clamp(min=0), reduction="none"), torch.zeros(1)
            loss = (losses * mask).sum() / mask.sum()
        else:
            loss = cross_entropy(inputs @ weight, none)
        loss.backward()
        assert loss.isnan() and weight.grad is not None
        assert weight.grad.isnan().all() == by_hand and (weight.grad == 0).all() != by_hand


def test_b39_the_corrected_momentum_is_near_for_unequal_means() -> None:
    """B39's other numbers: micro-batches {0, 0} and {4, 4} at N = 2; r = 1 - sqrt(0.9) leaves 4 r, not 0.1 x 2."""
    norm = torch.nn.BatchNorm1d(1)
    norm.momentum = 1 - 0.9**0.5
    for value in (0.0, 4.0):
        norm(torch.full((2, 1), value))
    assert norm.running_mean.item() == pytest.approx(4 * (1 - 0.9**0.5), rel=1e-6)
    assert f"{norm.running_mean.item():.4f} where the whole batch gives 0.2" in pitfalls.load().card("b39").why


def test_every_reported_fault_is_on_one_card() -> None:
    assert sorted(row for card in CARDS for row in card.rows) == sorted(ROWS)


def test_cards_differ_from_one_another_and_are_named_by_a_fault_of_theirs() -> None:
    assert len({card.title for card in CARDS}) == len(CARDS)
    assert [card.id for card in CARDS if card.id.upper() not in card.rows] == []
    assert {card.group for card in CARDS} == {group.id for group in pitfalls.load().groups}


@pytest.mark.parametrize("card", CARDS, ids=IDS)
def test_the_two_scripts_are_equal_but_for_a_few_lines(card: Card) -> None:
    wrong, right = card.wrong.splitlines(), card.right.splitlines()
    assert 0 < len(set(right) - set(wrong)) <= 7
    assert len(set(wrong) & set(right)) >= len(set(right)) / 2
    assert max(len(wrong), len(right)) <= 36
    assert max(map(len, wrong + right)) <= 80  # two of them stand side by side
    assert card.expected_wrong != card.expected_right


def test_reports_lead_to_their_threads() -> None:
    assert pitfalls.load().card("s1").links()["nanochat 59"] == "https://github.com/karpathy/nanochat/issues/59"
    for card in CARDS:
        for report in card.reports:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report)


def test_a_card_is_run_in_a_process_of_its_own(alone: None) -> None:
    """S1 and S3 as the page runs them; what stands above the result is kept."""
    card = pitfalls.load().card("s1")
    outcome = pitfalls.run(card.model_copy(update={"wrong": f"print('above')\n{card.wrong}"}))
    assert outcome.wrong.result == pytest.approx((6.0, 3.0), rel=1e-6)
    assert outcome.right.result == pytest.approx((4.0, 2.4), rel=1e-6)
    assert (outcome.wrong.printed, outcome.right.printed) == ("above", "")


class Impatient(subprocess.Popen[str]):
    """A process whose time is over as soon as the file ``started`` is there."""

    started: Path

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[str, str]:
        if timeout is not None:
            wait_until(lambda: self.started.exists() and bool(self.started.read_text()), 60)
            raise subprocess.TimeoutExpired(self.args, timeout)
        return super().communicate()


def test_a_script_that_takes_too_long_is_stopped_with_what_it_started(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Impatient.started = tmp_path / "started"
    monkeypatch.setattr(subprocess, "Popen", Impatient)
    child = f"import os, time; open({str(Impatient.started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = f"import os, sys\nos.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-c', {child!r}])"
    with pytest.raises(ScriptError, match=r"card = 'x1': its scripts did not end within 120 s and were stopped; run"):
        pitfalls.run(made(script))
    stopped = int(Impatient.started.read_text())
    wait_until(lambda: not lives(stopped))


def lives(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_time_limit_is_the_clocks(alone: None) -> None:
    with pytest.raises(ScriptError, match=r"did not end within 0\.5 s"):
        pitfalls.run(made("import time\ntime.sleep(600)"), time_limit=0.5)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise KeyError('weight')", r"card = 'x1': its wrong script failed \(KeyError: 'weight'\)"),
        ("print(3)", r"card = 'x1': its wrong script printed '3' at its end, not result = and numbers"),
        ("print('result = [1, x]')", r"printed 'result = \[1, x\]' at its end"),
        ("import os\nos._exit(3)", r"card = 'x1': its scripts could not be run \(the process ended with code 3\)"),
    ],
)
def test_a_script_that_fails_is_told_in_one_sentence(alone: None, script: str, told: str) -> None:
    with pytest.raises(ScriptError, match=told):
        pitfalls.run(made(script))


def test_two_cards_run_at_a_time(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    active, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def slow(card: Card, time_limit: float) -> Outcome:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        go.wait(60)
        with lock:
            active -= 1
        return Outcome(Output((1.0,), ""), Output((1.0,), ""), 0.0)

    monkeypatch.setattr(pitfalls, "_run", slow)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(pitfalls.run, made("", name=f"x{number}")) for number in range(5)]
        wait_until(lambda: active == 2)
        go.set()
        assert [future.result().right.result for future in asked] == [(1.0,)] * 5
    assert most == 2


def test_a_class_that_asks_for_one_card_shares_a_run(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine ask while the first one's run is under way: one more run serves them all, and a later question is run."""
    runs, go, looked = [], threading.Event(), itertools.count(1)
    looks = [0]

    def clock() -> float:
        looks[0] = next(looked)
        return float(looks[0])

    def counted(card: Card, time_limit: float) -> Outcome:
        started = clock()
        runs.append(started)
        go.wait(60)
        return Outcome(Output((1.0,), ""), Output((1.0,), ""), started)

    monkeypatch.setattr(pitfalls, "_run", counted)
    monkeypatch.setattr(pitfalls, "time", SimpleNamespace(monotonic=clock))
    card = made("", name="y1")
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(pitfalls.run, card)
        wait_until(lambda: len(runs) == 1)
        others = [pool.submit(pitfalls.run, card) for _ in range(9)]
        wait_until(lambda: looks[0] == 2 + 9)  # all have asked; the first one looked when it asked and when it began
        go.set()
        outcomes = {id(future.result()) for future in others}
    assert len(outcomes) == 1
    assert id(first.result()) not in outcomes
    assert len(runs) == 2
    pitfalls.run(card)
    assert len(runs) == 3


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SettingError, match="card = 'x1': is no card; open one of the list"):
        pitfalls.load().card("x1")
    with pytest.raises(SettingError, match="group = 'x': is no group; use one of scaling, tail"):
        pitfalls.load().group("x")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('id = "s4"', 'id = "s1"', "cards are there twice: s1"),
        ('group = "tail"', 'group = "tails"', "groups are unknown: tails"),
        ('title = "Tail"', 'name = "Tail"', r"groups\.1\.title"),
        ("[[cards]]", "[[cards", "at line"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    file = tmp_path / "pitfalls.toml"
    file.write_text(pitfalls.FILE.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=rf"data file pitfalls\.toml cannot be used \(.*{told}"):
        pitfalls.load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        pitfalls.load(tmp_path / "pitfalls.toml")
