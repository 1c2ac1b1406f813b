"""Recorded iterations: they are of the scripts as they are, and the reading room walks through them."""

import json
import re
import shlex
import sys
import tomllib

import numpy as np
import pytest
import tyro
from conftest import ROOT
from test_site import browser, page, site  # noqa: F401

sys.path.append(str(ROOT / "benchmarks"))
import walks  # noqa: E402

TABLE = tomllib.loads(walks.TABLE.read_text())
FIRST = "ppo_discrete"


class Walk:
    """A recording, in which values are arrays."""

    def __init__(self, name, text=None):
        text = text or (walks.OUT / f"{name}.js").read_text()
        self.__dict__ |= json.loads(re.fullmatch(r'.*?\["\w+"\] = (.*);\n', text, re.S)[1])

    def value(self, number):
        return walks.unpack(self.__dict__, number)

    def all(self, name, function=None):
        """Each value that was recorded under a name, with the samples that its rows are of."""
        for *_, made, where, _ in self.steps:
            for key, number, places in made:
                if key == name and where == (function or where) and (self.size_of(number) or not places + 1):
                    yield self.value(number), self.places[places] if places >= 0 else None

    def size_of(self, number):
        first, rest = self.values[number]
        return len(rest) if isinstance(first, list) else self.size_of(first)

    def last(self, name, function=None):
        return [*self.all(name, function)][-1][0]


def test_every_script_has_one_and_its_lines_are_those_of_today():
    """If not: python benchmarks/walks.py NAME."""
    scripts = [*ROOT.glob("ppo_*.py"), *ROOT.glob("reinforce_*.py"), *ROOT.glob("variants/*.py")]
    alone = {path.stem: path for path in scripts if path.stem != "ppo_atari_distributed"}  # needs torchrun
    assert {*TABLE} == {*alone} == {path.stem for path in walks.OUT.glob("*.js")}
    for name, path in alone.items():
        walk, lines = Walk(name), path.read_text().splitlines()
        now = {line: lines[int(line) - 1].strip() for line in walk.rows}
        assert now == walk.rows, f"python benchmarks/walks.py {name}"
        assert (walk.flags, walk.iteration) == (TABLE[name]["flags"], TABLE[name]["iteration"])


@pytest.mark.parametrize("name", ["ppo_discrete", "ppo_continuous"])
def test_something_happens_and_the_numbers_are_those_of_the_algorithm(name):
    """A limit, a failure, ratios that are 1 at first, and clipped ones later; GAE, computed anew."""
    walk = Walk(name)
    args = tyro.cli(__import__(name).Args, args=shlex.split(walk.flags))
    rewards, values, next_values, dones = (
        walk.last(x, "compute_gae") for x in ("rewards", "values", "next_values", "dones")
    )
    ended = next_values[dones == 1]
    assert (ended == 0).any() and (ended != 0).any()  # one failed, and the time of one ran out
    expected = rewards + args.gamma * next_values - values
    for t in reversed(range(len(rewards) - 1)):
        expected[t] += args.gamma * args.gae_lambda * (1 - dones[t]) * expected[t + 1]
    assert walk.last("advantages", "compute_gae") == pytest.approx(expected, rel=0.01, abs=0.01)
    ratios = [ratio for ratio, _ in walk.all("ratio")]
    assert ratios[0] == pytest.approx(1, abs=1e-4) and not np.allclose(ratios[1], 1, atol=1e-3)
    assert max(float(x) for x, _ in walk.all("clip_frac")) > 0
    assert len(ratios) == args.update_epochs * args.num_minibatches


def test_a_sample_is_the_same_one_in_every_table():
    """The advantage of each sample of a minibatch is what GAE computed for its step and env."""
    walk = Walk(FIRST)
    advantages = walk.last("advantages", "compute_gae").flatten()
    found = 0
    for picked, places in walk.all("batch.advantages", "ppo_loss"):
        assert picked == pytest.approx(advantages[places], rel=1e-3, abs=1e-3)
        found += len(places)
    assert found == 2 * len(advantages)  # two epochs
    rewards = [(x, places) for x, places in walk.all("reward", "train")]
    assert [places[0] for _, places in rewards] == [*range(0, 2 * len(rewards), 2)]


def test_answers_are_told_by_their_tokens():
    """PPO's critic changes its mind within an answer; a group's advantage does not."""
    walk = Walk("ppo_llm")
    values, rewards = walk.last("values", "train"), walk.last("rewards", "compute_gae")
    assert 0 < rewards.sum() < len(walk.words) and np.shape(walk.words) == values.shape
    assert np.ptp(values, axis=1).max() > 0.2
    for token, (row, words) in enumerate(zip(walk.prompts, walk.words, strict=True)):
        if rewards[:, token].sum():
            assert "".join(words[:5]) == "".join(sorted(row.strip(">")))
    walk = Walk("grpo")
    advantages = walk.last("batch.advantages", "train")
    assert np.ptp(advantages, axis=1).max() == 0 and np.ptp(advantages[:4], axis=0).min() >= 0
    assert advantages.reshape(2, 4, -1).sum(1) == pytest.approx(0, abs=1e-3) and abs(advantages).max() > 0.5


def test_credit_of_answers():
    """The table of an answer: TD errors follow from values and reward, advantages are sums of them."""
    for row in "12345678":
        head, _, *lines = walks.table("ppo_llm", row).splitlines()
        names, *columns = zip(*(line.strip("| ").split(" | ") for line in lines), strict=True)
        assert names == ("reward", "value", "TD error", "advantage")
        assert head.count("`") == 2 * len(columns)
        rewards, values, errors, advantages = np.array(columns, float).T
        assert set(rewards[:-1]) <= {0} and rewards[-1] in (0, 1)
        np.testing.assert_allclose(errors, rewards + np.append(values[1:], 0) - values, atol=0.016)
        sums = [sum(0.95**k * error for k, error in enumerate(errors[t:])) for t in range(len(errors))]
        np.testing.assert_allclose(advantages, sums, atol=0.04)
    for row in "12345678":
        _, _, line = walks.table("grpo", row).splitlines()
        name, *advantages = line.strip("| ").split(" | ")
        assert name == "advantage" and len(set(advantages)) == 1


@pytest.mark.long
def test_a_recording_says_what_a_run_does():
    """A run of the script, watched by other means, has the numbers of its recording."""
    import ppo_discrete

    seen, original = [], ppo_discrete.compute_gae

    def watched(*inputs):
        seen.append([np.array(x) for x in inputs[:4]] + [original(*inputs)])
        return seen[-1][-1]

    flags = TABLE[FIRST]["flags"]
    ppo_discrete.compute_gae = watched
    try:
        again = walks.record(FIRST, 3, flags)
    finally:
        ppo_discrete.compute_gae = original
    walk = Walk(FIRST, f'["{FIRST}"] = {json.dumps(again)};\n')
    for name, x in zip(("rewards", "old_values", "next_values", "dones"), seen[3], strict=False):
        assert walk.last(name, "train")[:10] == pytest.approx(x, rel=1e-3, abs=1e-3), name
    assert walk.last("advantages", "train") == pytest.approx(seen[3][-1], rel=1e-3, abs=1e-3)
    assert len(seen) == 4 and not sys.gettrace()


@pytest.fixture
def walking(page):  # noqa: F811
    """A page with its walk open, at the first step of a line."""

    def walking(path, line=None):
        page.go(path)
        page.click("#walk-open")
        page.wait_for_selector("#walk:not([hidden]) figure, #walk:not([hidden]) .none")
        if line:
            found = "walks.at(-1).text(stop.at(-1) ?? 0).startsWith(line)"
            page.evaluate(f"(line) => goTo(stops.findIndex((stop) => {found}))", line)
        return page

    return walking


@pytest.mark.long
def test_forward_and_back(walking):
    """The line that is lit is the one that ran, and the table has what it made."""
    page, walk = walking("ppo_discrete.html"), Walk(FIRST)  # noqa: F811
    for step, key in zip([0, 1, 2, 3, 2, 1], ["Right"] * 3 + ["Left"] * 3, strict=True):
        first, last, made, *_ = walk.steps[step]
        lit = page.locator(".lit").evaluate_all("lines => lines.map((line) => line.id)")
        assert lit == [f"L{n}" for n in range(first, last + 1)]
        names = page.locator("#walk-values .made figcaption code").all_inner_texts()
        assert names == [name for name, *_ in made]
        page.keyboard.press(f"Arrow{key}")
    page.click("#walk-close")
    assert not page.locator("#walk").is_visible() and not page.locator(".lit").count()


@pytest.mark.long
def test_advantages_fill_from_the_bottom_and_a_line_leads_to_its_next_run(walking):
    page, walk = walking("ppo_discrete.html", "advantages[t] +="), Walk(FIRST)  # noqa: F811
    for t in (8, 7, 6):
        new = page.locator(".made td.new").evaluate_all(
            "cells => cells.map((cell) => Number(cell.dataset.sample))"
        )
        assert {sample // 2 for sample in new} <= {t}
        line = page.evaluate("walks[0].steps[stops[here][0]][0]")
        page.click(f"#L{line} code")
    read = """rows => rows.map((row) => [...row.querySelectorAll("td")])
        .map((cells) => cells.map((x) => Number(x.innerText.replace("−", "-"))))"""
    rows = page.locator(".made figure", has_text="advantages").locator("tr").evaluate_all(read)
    table = [row for row in rows if row]  # the first one has the steps
    step = page.evaluate("stops[here][0]")
    [number] = [number for name, number, _ in walk.steps[step][2] if name == "advantages"]
    assert np.array(table) == pytest.approx(walk.value(number).T, rel=0.01, abs=0.01)


@pytest.mark.long
def test_a_sample_is_followed_from_its_reward_to_its_share_of_the_loss(walking):
    page, walk = walking("ppo_discrete.html", "rewards[t] = reward"), Walk(FIRST)  # noqa: F811
    sample = int(page.locator(".made td[data-sample]").first.get_attribute("data-sample"))
    page.locator(".made td[data-sample]").first.click()
    assert page.locator("#walk-followed b").inner_text() == "step 0, env 0" and sample == 0
    minibatch = next(k for k, (_, places) in enumerate(walk.all("gain")) if sample in places)
    gains = [
        step for step, (*_, made, _, _) in enumerate(walk.steps) if "gain" in [name for name, *_ in made]
    ]
    page.evaluate("step => goTo(step)", gains[minibatch])
    gain, places = [*walk.all("gain")][minibatch]
    told = page.locator("#walk-followed").inner_text().replace("−", "-")
    share = -gain[places.index(sample)] / len(places)
    assert float(re.search(r"adds (-?[\d.]+) to policy_loss", told)[1]) == pytest.approx(
        share, rel=0.01, abs=1e-3
    )
    assert {"ratio", "advantages", "returns", "logprobs"} <= {*re.findall(r"[a-z_]+", told)}
    outlined = page.locator(".followed").evaluate_all(
        "cells => cells.map((cell) => Number(cell.dataset.sample))"
    )
    assert outlined and {*outlined} == {sample}


@pytest.mark.long
def test_loops_branches_and_what_is_old(walking):
    """A loop that is over, a branch that is left out; rows of the rollout before are told apart."""
    page = walking("ppo_discrete.html", "if timeout.any():")
    assert "left out" in page.locator("#walk-values").inner_text()
    page.evaluate(
        "goTo(stops.findIndex(([k]) => walks[0].text(k).startsWith('for n in') && !walks[0].steps[k][4]))"
    )
    assert "the loop is over" in page.locator("#walk-values").inner_text()
    page.evaluate("goTo(stops.findIndex(([k]) => walks[0].text(k).startsWith('dones[t] = done')))")
    old = page.locator(".made td.old").evaluate_all("cells => cells.map((x) => Number(x.dataset.sample))")
    assert sorted(old) == [*range(2, 20)]
    page.evaluate("goTo(stops.length - 1)")
    assert page.locator("#walk-where").inner_text().endswith("epoch 2, minibatch 4")


@pytest.mark.long
def test_both_files_of_a_diff_walk_together(walking):
    page = walking("diffs/reinforce_baseline--ppo_discrete.html", "ratio = log_ratio.exp()")  # noqa: F811
    assert page.locator("#walk-values > div").count() == 2
    assert "has no such step" in page.locator("#walk-values > div").first.inner_text()
    assert page.locator(".new .lit, .fold .lit").count() == 1
    page.evaluate(
        "goTo(stops.findIndex((stop) => stop[0] !== null && walks[0].text(stop[0]).startsWith('returns =')))"
    )
    columns = page.locator("#walk-values > div pre").all_inner_texts()
    assert columns[0] == columns[1] == "returns = advantages + old_values[:T]"
    page.locator("#walk-values > div").first.locator("td[data-sample]").first.click()
    assert page.locator("#walk-followed b").inner_text().startswith("reinforce_baseline.py: ")
    assert not page.locator("#walk-values > div").last.locator(".followed").count()
    shared = page.evaluate("stops.filter(([a, b]) => a !== null && b !== null).length")
    assert shared > 100 and page.evaluate("stops.length") > shared


@pytest.mark.long
def test_tokens_of_an_answer_stand_over_their_values(walking):
    page, walk = walking("variants/ppo_llm.html", "values = in_pieces"), Walk("ppo_llm")  # noqa: F811
    words = page.locator(".made tr.ids").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((x) => x.innerText))"
    )
    assert words == [[prompt, *row] for prompt, row in zip(walk.prompts, walk.words, strict=True)]
    assert page.locator("#walk .hint code").inner_text() == f"python variants/ppo_llm.py {walk.flags}"


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_a_walk_is_accessible(walking, page, width, scheme):  # noqa: F811
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    walking("ppo_discrete.html", "gain = torch.min")
    page.locator("#walk td[data-sample]").first.click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    violations = axe.run(page, options={"preload": False, "resultTypes": ["violations"]}).response[
        "violations"
    ]
    assert not [(x["id"], y["target"], y["failureSummary"]) for x in violations for y in x["nodes"]]
