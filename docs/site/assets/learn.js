"use strict";
// The page on which PPO learns: a worker for each seed trains, and tells of each update; this draws.
const BASE = { units: 32, numEnvs: 8, numSteps: 64, gamma: 0.99, lambda: 0.95, bootstrap: true, baseline: true, epochs: 4, minibatches: 4, rate: 5e-3,
  clip: 0.2, vfClip: Infinity, entCoef: 0, normAdv: true };
const STEP = { epochs: 1, minibatches: 1, clip: Infinity };
const PRESETS = {
  reinforce: { ...BASE, ...STEP, lambda: 1, baseline: false, normAdv: false },
  critic: { ...BASE, ...STEP, lambda: 1 },
  gae: { ...BASE, ...STEP },
  reuse: { ...BASE, epochs: 8, clip: Infinity },
  ppo: { ...BASE, epochs: 8 },
};
const SEEDS = 3, MOST = 60_000;
const { CartPole, forward, softmax, makeRandom } = ppo();
let args, runs = [[]], workers = [], actor = null;

// What a worker does: it trains one seed. Messages bring new flags, or say that it may go on.
function work() {
  const { Learner } = ppo();
  let learner = null, most = 0, paused = false;
  onmessage = ({ data }) => {
    if (data.seed) { learner = new Learner(data.seed, data.args); most = data.most; turn(); }
    if (data.args) learner.args = data.args;
    if ("paused" in data) paused = data.paused;
  };
  function turn() {
    if (!paused && learner.steps < most) {
      const metrics = learner.update(learner.rollout()), recent = learner.episodes.slice(-20);
      const mean = recent.length ? recent.reduce((a, b) => a + b, 0) / recent.length : null;
      postMessage({ steps: learner.steps, mean, actor: learner.actor.map(({ weight, bias }) => ({ weight, bias })), ...metrics });
    }
    setTimeout(turn, paused ? 50 : 0);
  }
}
const source = `"use strict"; ${ppo}; (${work})();`;

// Controls
const at = (id) => Number($(`#${id}`).value);
function readArgs() {
  args = { ...args, lambda: at("l-lambda"), gamma: at("l-gamma"), epochs: at("l-epochs"), rate: 10 ** at("l-rate"),
    clip: $("#l-clips").checked ? at("l-epsilon") : Infinity, edge: at("l-epsilon"), // edge: where clip_frac counts from
    bootstrap: $("#l-limits").checked, baseline: $("#l-baseline").checked, normAdv: $("#l-norm").checked };
  args.minibatches = args.epochs > 1 || args.clip < Infinity ? 4 : 1;
  label("l-lambda", show(args.lambda, 2));
  label("l-gamma", show(args.gamma, 3));
  label("l-epochs", args.epochs);
  label("l-rate", args.rate.toPrecision(2));
  label("l-epsilon", args.clip < Infinity ? show(args.clip, 2) : "off");
}
function writeArgs(preset) {
  args = { ...PRESETS[preset] };
  Object.entries({ lambda: args.lambda, gamma: args.gamma, epochs: args.epochs, rate: Math.log10(args.rate), epsilon: Math.min(args.clip, 0.2) })
    .forEach(([name, value]) => { $(`#l-${name}`).value = value; });
  $("#l-clips").checked = args.clip < Infinity;
  $("#l-limits").checked = args.bootstrap;
  $("#l-baseline").checked = args.baseline;
  $("#l-norm").checked = args.normAdv;
  const { minibatches } = args;
  readArgs();
  args.minibatches = minibatches;
}
function begin() {
  workers.forEach((worker) => worker.terminate());
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const fresh = Array.from({ length: SEEDS }, () => []);
  workers = fresh.map((list, k) => {
    const worker = new Worker(address);
    worker.onmessage = ({ data: { actor: weights, ...row } }) => {
      list.push(row);
      if (k === 0 && runs === fresh) actor = weights;
    };
    worker.postMessage({ seed: k + 1, args, most: MOST });
    return worker;
  });
  runs = fresh;
  pause(false);
}
let paused = true;
function pause(yes) {
  paused = yes;
  $("#l-pause").textContent = yes ? "Go on" : "Pause";
  workers.forEach((worker) => worker.postMessage({ paused: yes }));
}
on($("#l-preset"), "change", () => { writeArgs($("#l-preset").value); begin(); });
on($("#l-again"), "click", () => { readArgs(); begin(); });
on($("#l-pause"), "click", () => (workers.length ? pause(!paused) : begin()));
"l-lambda l-gamma l-epochs l-rate l-epsilon l-clips l-limits l-baseline l-norm".split(" ").forEach((id) => on($(`#${id}`), "input", () => {
  readArgs();
  workers.forEach((worker) => worker.postMessage({ args }));
}));

// Pictures
function draw() {
  const points = (name, list) => list.filter((x) => x[name] !== null).map((x) => [x.steps, x[name]]);
  const x = [0, MOST], xticks = [0, 20_000, 40_000];
  plot($("#l-return"), { x, y: [0, 500], xticks, yticks: [0, 100, 200, 300, 400, 500], name: "steps",
    lines: runs.map((list, k) => ({ points: points("mean", list), kind: k ? "thin" : "main" })) });
  const small = { "l-kl": ["kl", [0, 0.1]], "l-clip": ["clipFrac", [0, 1]], "l-explained": ["explained", [-1, 1]], "l-entropy": ["entropy", [0, 0.7]] };
  for (const [id, [name, y]] of Object.entries(small)) {
    const held = (v) => Math.min(Math.max(v, y[0]), y[1]);
    plot($(`#${id}`), { x, y, xticks, yticks: y, name: "steps", lines: [{ points: points(name, runs[0]).map(([a, b]) => [a, held(b)]), kind: "main" }] });
  }
  const last = runs.map((list) => list.at(-1)).filter(Boolean);
  const over = last.length === SEEDS && last.every(({ steps }) => steps >= MOST);
  $("#l-pause").disabled = over;
  const steps = last.map((row) => row.steps.toLocaleString("en")).join(", ");
  const means = last.map(({ mean }) => (mean === null ? "none" : show(mean, 0))).join(", ");
  const said = [`After ${steps} steps, the last 20 episodes of ${SEEDS} seeds had mean returns of ${means} of 500.`];
  if (over) said.push("This run is over: Start again takes the flags as they are now.");
  $("#l-case").textContent = last.length ? said.join(" ") : "Nothing learns yet.";
}
// The first seed's policy at work, in time as it is, with the weights of this moment
const watched = new CartPole(makeRandom(7));
function balance() {
  if (!actor) return;
  const { probs } = softmax(forward(actor, watched.state)[3]), over = watched.step(Math.random() < probs[0] ? 0 : 1);
  const [x, , angle] = watched.state;
  $("#l-cart").innerHTML = `<path class="grid" d="M-2.6 0H2.6M-2.4 -.05V.1M2.4 -.05V.1"/><rect class="cart" x="${x - 0.25}" y="-0.15" width="0.5" height="0.3" rx="0.04"/>
    <path class="pole" d="M${x} -0.15L${x + Math.sin(angle)} ${-0.15 - Math.cos(angle)}"/>`;
  $("#l-steps").textContent = watched.length;
  if (over.terminated || over.truncated) watched.reset();
}
let drawn = 0, moved = 0;
function frame(now) {
  if (now - moved >= 20) { moved = now; balance(); }
  if (now - drawn >= 200) { drawn = now; draw(); }
  requestAnimationFrame(frame);
}
writeArgs("ppo");
requestAnimationFrame(frame);
