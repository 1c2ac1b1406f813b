"use strict";
const number = (id) => Number($(`#${id}`).value);
const sum = (list) => list.reduce((a, b) => a + b, 0);
// Draw now and whenever one of these is moved, if the page has this figure.
function listen(ids, draw) {
  const elements = ids.split(" ").map((id) => document.getElementById(id));
  elements.forEach((element) => on(element, "input", draw));
  if (elements[0]) draw();
}

// The clip
function clip(ratio, epsilon, A) {
  const clamped = Math.min(Math.max(ratio, 1 - epsilon), 1 + epsilon);
  const [free, cut] = [{ value: ratio * A, slope: A }, { value: clamped * A, slope: ratio === clamped ? A : 0 }];
  return { free, cut, least: cut.value < free.value ? cut : free };
}
const CASES = {
  1: ["A good action that has become rarer: not clipped, the gradient brings it back.", "A good action near its old probability: it is made more probable.",
    "A good action that is already more probable by more than epsilon: clipped, there is nothing left to gain."],
  "-1": ["A bad action that is already rarer by more than epsilon: clipped, there is nothing left to gain.",
    "A bad action near its old probability: it is made less probable.", "A bad action that has become more probable: not clipped, the gradient takes it back."],
};
function drawClip() {
  const [ratio, epsilon, A] = [number("ratio"), number("epsilon"), number("sign")];
  label("ratio", show(ratio, 2));
  label("epsilon", show(epsilon, 2));
  const curve = (branch) => Array.from({ length: 201 }, (_, i) => [i / 100, clip(i / 100, epsilon, A)[branch].value]);
  const now = clip(ratio, epsilon, A);
  const y = A > 0 ? [0, 2] : [-2, 0], bound = (at) => ({ points: y.map((v) => [at, v]), kind: "bound" });
  plot($("#clip-plot"), { x: [0, 2], y, xticks: [0, 0.5, 1, 1.5, 2], yticks: A > 0 ? [0, 1, 2] : [-2, -1, 0], name: "ratio",
    lines: [bound(1 - epsilon), bound(1 + epsilon), { points: curve("free"), kind: "thin" }, { points: curve("cut"), kind: "dots" }, { points: curve("least"), kind: "main" }],
    marks: [[ratio, now.least.value]] });
  $$("#clip-table tbody tr").forEach((row, i) => {
    const branch = [now.free, now.cut, now.least][i];
    [row.cells[1].textContent, row.cells[2].textContent] = [show(branch.value), show(branch.slope, 0)];
  });
  $("#clip-case").textContent = CASES[A][ratio < 1 - epsilon ? 0 : ratio > 1 + epsilon ? 2 : 1];
}
listen("ratio epsilon sign", drawClip);

// Generalized advantage estimation
function gae(rewards, values, nextValues, dones, gamma, lambda) {
  const errors = rewards.map((r, t) => r + gamma * nextValues[t] - values[t]), advantages = [...errors];
  for (let t = rewards.length - 2; t >= 0; t--) advantages[t] += gamma * (1 - dones[t]) * lambda * advantages[t + 1];
  return { errors, advantages };
}
function drawGae() {
  const [gamma, lambda] = [number("gamma"), number("lambda")];
  label("gamma", show(gamma, 2));
  label("lambda", show(lambda, 2));
  const rewards = [0, 1, 2].map((t) => number(`r${t}`)), values = [0, 1, 2, 3].map((t) => number(`v${t}`));
  if ($("#end").checked) values[3] = 0; // whatever stands there
  $("#v3").disabled = $("#end").checked;
  const { errors, advantages } = gae(rewards, values.slice(0, 3), values.slice(1), [0, 0, 0], gamma, lambda);
  $$("#gae-table tbody tr").forEach((row, t) => {
    if (t < 3) [row.cells[3].textContent, row.cells[4].textContent] = [show(errors[t]), show(advantages[t])];
  });
  const weights = [1 - lambda, (1 - lambda) * lambda, lambda ** 2];
  const steps = [1, 2, 3].map((n) => sum(errors.slice(0, n).map((x, t) => gamma ** t * x)));
  $("#gae-mean").textContent = `Advantage of step 0 = ${weights.map((w, i) => `${show(w)} × ${show(steps[i])} (${i + 1} step${i ? "s" : ""})`).join(" + ")} = ${show(sum(weights.map((w, i) => w * steps[i])))}`;
  const { rewards: r, values: v, next_values: next, dones } = FIGURES.rollout;
  const curve = (l, kind) => ({ kind, points: gae(r, v, next, dones, gamma, l).advantages.map((a, t) => [t, a]) });
  const lines = [curve(0, "thin"), curve(1, "dots"), curve(lambda, "main")];
  const all = lines.flatMap((line) => line.points.map((p) => p[1])), y = [Math.floor(Math.min(...all, 0)), Math.ceil(Math.max(...all))];
  const step = Math.ceil((y[1] - y[0]) / 6), ticks = [];
  for (let tick = Math.ceil(y[0] / step) * step; tick <= y[1]; tick += step) ticks.push(tick);
  dones.forEach((done, t) => done && lines.unshift({ kind: "bound", points: [[t + 0.5, y[0]], [t + 0.5, y[1]]] }));
  plot($("#gae-plot"), { x: [0, r.length], y, xticks: [0, 32, 64, 96, 128], yticks: ticks, lines, name: "step of the rollout" });
}
listen("gamma lambda end r0 r1 r2 v0 v1 v2 v3", drawGae);

// Ratios
function drawRatios() {
  const run = FIGURES.runs[$("#run").value], { epochs } = run[number("iteration")];
  label("epoch", `${number("epoch")} of ${epochs.length}`);
  const { counts, range, outside, kl } = epochs[number("epoch") - 1], edges = FIGURES.edges;
  const bars = counts.map((count, i) => [edges[i], edges[i + 1], count, edges[i + 1] < 0.801 || edges[i] > 1.199 ? "out" : "in"]);
  const top = Math.max(...counts), bound = (at) => ({ kind: "bound", points: [[at, 0], [at, top]] });
  plot($("#ratio-plot"), { x: [0.37, 2.72], y: [0, top], xticks: [0.5, 0.8, 1, 1.2, 1.5, 2, 2.5], yticks: [0, top], bars, lines: [bound(0.8), bound(1.2)], name: "ratio" });
  $("#ratio-case").textContent = `Ratios from ${show(range[0], 2)} to ${show(range[1], 2)}; ${show(100 * outside, 1)} % are outside 1 ± 0.2; KL ${show(kl, 4)}.`;
}
on($("#run"), "input", () => { $("#epoch").value = $("#epoch").max = $("#run").value === "4" ? 4 : 20; });
listen("run iteration epoch", drawRatios);

// CartPole, with gymnasium's equations, and the agent
function cartpole([x, speed, angle, turn], action, dt = 0.02) {
  const force = action ? 10 : -10, [sin, cos] = [Math.sin(angle), Math.cos(angle)];
  const push = (force + 0.05 * turn ** 2 * sin) / 1.1;
  const turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
  return [x + dt * speed, speed + dt * (push - (0.05 * turning * cos) / 1.1), angle + dt * turn, turn + dt * turning];
}
function network(layers, input) {
  return layers.reduce((units, [weight, bias], i) => weight.map((row, j) => {
    const total = bias[j] + sum(row.map((w, k) => w * units[k]));
    return i < layers.length - 1 ? Math.tanh(total) : total;
  }), input);
}
function policy(state) {
  const logits = network(FIGURES.agent.actor, state), weights = logits.map((x) => Math.exp(x - Math.max(...logits)));
  return weights.map((w) => w / sum(weights));
}
let state, steps, fallen, running = false, last = 0;
function drawCart() {
  const [x, , angle] = state, p = policy(state);
  $("#cart").innerHTML = `<path class="grid" d="M-2.6 0H2.6M-2.4 -.05V.1M2.4 -.05V.1"/><rect class="cart" x="${x - 0.25}" y="-0.15" width="0.5" height="0.3" rx="0.04"/>
    <path class="pole" d="M${x} -0.15L${x + Math.sin(angle)} ${-0.15 - Math.cos(angle)}"/><rect class="out" x="${x - 0.3 - p[0] * 0.8}" y="0.2" width="${p[0] * 0.8}" height="0.08"/><rect class="in" x="${x + 0.3}" y="0.2" width="${p[1] * 0.8}" height="0.08"/>`;
  const cells = $("#agent-table tbody tr").cells;
  [...state, ...p, network(FIGURES.agent.critic, state)[0]].forEach((v, i) => { cells[i].textContent = show(v, 2); });
  cells[7].textContent = steps;
}
function startAgain() {
  state = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
  [steps, fallen] = [0, false];
  $("#agent-case").textContent = "";
  drawCart();
}
function advance() {
  if (fallen) return;
  state = cartpole(state, Math.random() < policy(state)[1] ? 1 : 0);
  steps += 1;
  fallen = Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > (12 * Math.PI) / 180;
  if (fallen) $("#agent-case").textContent = `The episode ended after ${steps} steps, ${Math.abs(state[0]) > 2.4 ? "at the edge" : "with the pole at 12 degrees"}.`;
  drawCart();
}
function tick(now) {
  if (now - last >= 20) { last = now; advance(); }
  if (running) requestAnimationFrame(tick);
}
function run(yes) {
  press($("#play"), running = yes);
  if (running) requestAnimationFrame(tick);
}
const shove = (speed) => { if (fallen) startAgain(); state[1] += speed; drawCart(); };
on($("#push-left"), "click", () => shove(-0.5));
on($("#push-right"), "click", () => shove(0.5));
on($("#play"), "click", () => { if (fallen) startAgain(); run(!running); });
on($("#step"), "click", () => { run(false); advance(); });
on($("#reset"), "click", startAgain);
if ($("#cart")) {
  $("#agent-size").textContent = [FIGURES.agent.actor, FIGURES.agent.critic].flat(Infinity).length;
  $("#agent-return").textContent = FIGURES.agent.mean_return;
  startAgain();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches && "IntersectionObserver" in window) {
    const seen = new IntersectionObserver(([entry]) => { if (entry.isIntersecting) { run(true); seen.disconnect(); } });
    seen.observe($("#cart"));
  }
}
