"""PPO in JavaScript: an update of it is that of ppo_discrete.py, and it learns in the page."""

import time

import numpy as np
import pytest
import torch
from test_site import browser, page, site  # noqa: F401

import ppo_discrete

pytestmark = pytest.mark.long
# The names of flags in JavaScript
NAMES = dict(
    gamma="gamma",
    gae_lambda="lambda",
    update_epochs="epochs",
    num_minibatches="minibatches",
    learning_rate="rate",
    clip_coef="clip",
    vf_clip_coef="vfClip",
    ent_coef="entCoef",
    norm_adv="normAdv",
)


def layers(network):
    return [{"weight": x.weight.tolist(), "bias": x.bias.tolist()} for x in network[::2]]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        dict(ent_coef=0.1, clip_coef=0.01, vf_clip_coef=0.01),
        dict(
            norm_adv=False,
            clip_coef=1e9,
            vf_clip_coef=1e9,
            num_minibatches=1,
            update_epochs=5,
            learning_rate=2e-3,
        ),
    ],
    ids=["default", "much clipped", "not clipped"],
)
def test_an_update_is_that_of_the_script(page, flags, make_args, monkeypatch):  # noqa: F811
    """The weights after a whole update, from the same weights, rollout and order of samples."""
    seen = {}

    def watched(rollout, device, original=ppo_discrete.make_batch):
        seen["batch"] = original(rollout, device)
        return seen["batch"]

    def shuffled(count, original=np.random.permutation):
        seen.setdefault("orders", []).append(original(count).tolist())
        return np.array(seen["orders"][-1])

    class Remembering(ppo_discrete.Agent):
        def __init__(self, envs):
            super().__init__(envs)
            seen["networks"] = {"actor": layers(self.actor), "critic": layers(self.critic)}

    monkeypatch.setattr(ppo_discrete, "make_batch", watched)
    monkeypatch.setattr(ppo_discrete, "Agent", Remembering)
    monkeypatch.setattr(np.random, "permutation", shuffled)
    flags = dict(learning_rate=0.01, num_envs=2, num_steps=32, update_epochs=3) | flags
    args = make_args(
        ppo_discrete, iterations=1, env_id="CartPole-v1", eval_episodes=0, anneal_lr=False, **flags
    )
    agent, log = ppo_discrete.train(args)
    batch = {name: x.tolist() for name, x in seen["batch"]._asdict().items()}
    options = {js: getattr(args, name) for name, js in NAMES.items()} | dict(numEnvs=1, numSteps=1, units=64)
    page.go("learn.html")
    theirs = page.evaluate(
        """([args, networks, batch, orders]) => {
            const learner = new (ppo().Learner)(1, args, networks), metrics = learner.update(batch, orders);
            const rows = ({ weight, bias }) => [weight.map((row) => [...row]), [...bias]];
            const lists = (network) => network.map(rows);
            return { actor: lists(learner.actor), critic: lists(learner.critic), metrics };
        }""",
        [options, seen["networks"], batch, seen["orders"]],
    )
    for name in ("actor", "critic"):
        before = torch.tensor(seen["networks"][name][0]["weight"])
        for layer, (weight, bias) in zip(getattr(agent, name)[::2], theirs[name], strict=True):
            assert layer.weight.tolist() == [pytest.approx(row, abs=2e-5) for row in weight]
            assert layer.bias.tolist() == pytest.approx(bias, abs=2e-5)
        assert (getattr(agent, name)[0].weight - before).abs().max() > 5e-3  # 3 epochs moved it
    metrics = {"kl": "kl", "clip_frac": "clipFrac", "entropy": "entropy", "explained_variance": "explained"}
    for ours, other in metrics.items():
        assert log[-1][ours] == pytest.approx(theirs["metrics"][other], abs=1e-4), ours


def test_it_learns_while_the_page_stays_alive(page):  # noqa: F811
    """A return of 475, by the first seed; meanwhile pictures are drawn, and sliders work."""
    page.go("learn.html")
    page.click("#l-pause")
    page.wait_for_function("runs.every((list) => list.length > 2)")
    frames = page.evaluate(
        """() => new Promise((done) => {
            let frames = 0;
            const count = () => { frames += 1; requestAnimationFrame(count); };
            count();
            setTimeout(() => done(frames), 2000);
        })"""
    )
    assert frames > 40
    page.wait_for_function("runs[0].some(({ mean }) => mean >= 475)", timeout=170_000)
    steps = page.evaluate("runs[0].find(({ mean }) => mean >= 475).steps")
    assert 5_000 < steps < 45_000
    assert (
        page.locator("#l-return polyline").count() == 3 and "of 500" in page.locator("#l-case").inner_text()
    )
    page.click("#l-pause")
    page.wait_for_timeout(700)
    count = page.evaluate("runs[0].length")
    page.wait_for_timeout(700)
    assert page.evaluate("runs[0].length") == count


def test_without_the_clip_it_forgets(page):  # noqa: F811
    """The same seeds, and one flag less: no seed keeps a return of 475."""
    page.go("learn.html")
    last = page.evaluate(
        """() => {
            const args = { ...PRESETS.reuse, numSteps: 64 };
            return [1, 2].map((seed) => {
                const learner = new (ppo().Learner)(seed, args);
                while (learner.steps < 25_600) learner.update(learner.rollout());
                return learner.episodes.slice(-20).reduce((a, b) => a + b, 0) / 20;
            });
        }"""
    )
    assert max(last) < 300


def test_a_slider_changes_a_run_that_goes_on(page):  # noqa: F811
    page.go("learn.html")
    page.select_option("#l-preset", "reuse")
    page.wait_for_function("runs[0].length > 3")
    assert page.locator("output[for=l-epsilon]").inner_text() == "off"
    assert page.evaluate("args.clip") == float("inf") and page.evaluate("runs[0].at(-1).clipFrac") > 0
    page.check("#l-clips")
    page.locator("#l-epsilon").fill("0.02")
    page.locator("#l-rate").fill("-4")
    before = page.evaluate("runs[0].length")
    page.wait_for_function(f"runs[0].length > {before + 5}")
    moved = page.evaluate("runs[0].map(({ kl }) => kl)")
    assert max(moved[before + 3 :]) < max(moved[:before]) / 10  # a fiftieth of the learning rate
    assert page.evaluate("[args.clip, args.rate]") == pytest.approx([0.02, 1e-4])
    started = time.monotonic()
    page.click("#l-again")
    page.wait_for_function("runs[0].length && runs[0].length < 20 && runs[0][0].steps === 512")
    assert time.monotonic() - started < 15
