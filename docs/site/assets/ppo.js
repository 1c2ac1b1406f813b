"use strict";
// PPO on CartPole, in plain JavaScript: the same numbers as ppo_discrete.py, to rounding. A test compares an update.
// It is one function, because the page hands its text to a worker, which has no files.
function ppo() {
  // Random numbers that follow from a seed (mulberry32), and normal ones (Box and Muller)
  function makeRandom(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let x = Math.imul(state ^ (state >>> 15), state | 1);
      x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
      return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
  }
  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  // CartPole-v1, with gymnasium's equations
  class CartPole {
    constructor(random, timeLimit = 500) { Object.assign(this, { random, timeLimit }); this.reset(); }
    reset() {
      this.state = Float64Array.from({ length: 4 }, () => 0.1 * this.random() - 0.05);
      this.length = 0;
    }
    step(action) {
      const [x, speed, angle, turn] = this.state, [sin, cos] = [Math.sin(angle), Math.cos(angle)];
      const push = ((action ? 10 : -10) + 0.05 * turn ** 2 * sin) / 1.1;
      const turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
      const pushed = push - (0.05 * turning * cos) / 1.1;
      this.state = Float64Array.of(x + 0.02 * speed, speed + 0.02 * pushed, angle + 0.02 * turn, turn + 0.02 * turning);
      this.length += 1;
      const terminated = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * 2 * Math.PI) / 360;
      return { terminated, truncated: this.length >= this.timeLimit };
    }
  }

  const tanh = (x) => 1 - 2 / (Math.exp(2 * x) + 1); // half the time of Math.tanh

  // A network: two tanh layers and a linear head. A layer is { weight: rows of inputs, bias, and their gradients }.
  function orthogonal(rows, columns, gain, random) {
    const wide = columns > rows, count = Math.min(rows, columns), size = Math.max(rows, columns), basis = [];
    while (basis.length < count) {
      const vector = Array.from({ length: size }, () => normal(random));
      for (const other of basis) {
        const along = vector.reduce((total, x, i) => total + x * other[i], 0);
        other.forEach((x, i) => { vector[i] -= along * x; });
      }
      const norm = Math.hypot(...vector);
      basis.push(vector.map((x) => x / norm));
    }
    return Array.from({ length: rows }, (_, i) => Float64Array.from({ length: columns }, (__, j) => gain * (wide ? basis[i][j] : basis[j][i])));
  }
  const makeLayer = (inputs, outputs, gain, random) => withGradients({ weight: orthogonal(outputs, inputs, gain, random), bias: new Float64Array(outputs) });
  function withGradients({ weight, bias }) {
    const rows = weight.map((row) => Float64Array.from(row));
    return { weight: rows, bias: Float64Array.from(bias), dWeight: rows.map((row) => new Float64Array(row.length)), dBias: new Float64Array(bias.length) };
  }
  function makeNetwork(units, outputs, gain, random) {
    return [makeLayer(4, units, Math.SQRT2, random), makeLayer(units, units, Math.SQRT2, random), makeLayer(units, outputs, gain, random)];
  }
  // The outputs of all layers, the input first
  function forward(network, input) {
    const outputs = [input];
    for (let depth = 0; depth < network.length; depth++) {
      const { weight, bias } = network[depth], from = outputs[depth], to = new Float64Array(bias.length);
      for (let i = 0; i < to.length; i++) {
        const row = weight[i];
        let total = bias[i];
        for (let j = 0; j < row.length; j++) total += row[j] * from[j];
        to[i] = depth < network.length - 1 ? tanh(total) : total;
      }
      outputs.push(to);
    }
    return outputs;
  }
  // Add the gradients that a gradient of the head's output has
  function backward(network, outputs, gradient) {
    for (let depth = network.length - 1; depth >= 0; depth--) {
      const { weight, dWeight, dBias } = network[depth], from = outputs[depth], below = new Float64Array(from.length);
      for (let i = 0; i < gradient.length; i++) {
        const g = gradient[i], row = weight[i], dRow = dWeight[i];
        dBias[i] += g;
        for (let j = 0; j < row.length; j++) {
          dRow[j] += g * from[j];
          below[j] += g * row[j];
        }
      }
      if (depth) for (let j = 0; j < below.length; j++) below[j] *= 1 - from[j] ** 2; // tanh
      gradient = below;
    }
  }
  const parametersOf = (networks) => networks.flat().flatMap((layer) => [...layer.weight.map((row, i) => [row, layer.dWeight[i]]), [layer.bias, layer.dBias]]);

  // The distribution of actions: probabilities, and their logarithms
  function softmax(logits) {
    const most = Math.max(...logits), weights = Array.from(logits, (x) => Math.exp(x - most));
    const total = weights.reduce((a, b) => a + b), log = Array.from(logits, (x) => x - most - Math.log(total));
    return { probs: weights.map((x) => x / total), log };
  }

  function computeGae(rewards, values, nextValues, dones, gamma, lambda) {
    const advantages = rewards.map((reward, t) => reward + gamma * nextValues[t] - values[t]);
    for (let t = rewards.length - 2; t >= 0; t--) advantages[t] += gamma * lambda * (1 - dones[t]) * advantages[t + 1];
    return advantages;
  }
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  function variance(list, less = 1) {
    const centre = mean(list);
    return list.reduce((total, x) => total + (x - centre) ** 2, 0) / (list.length - less);
  }

  // Adam
  class Adam {
    constructor(parameters) {
      this.parameters = parameters;
      this.moments = parameters.map(([values]) => [new Float64Array(values.length), new Float64Array(values.length)]);
      this.steps = 0;
    }
    step(rate, longest) {
      const squares = this.parameters.reduce((total, [, gradient]) => total + gradient.reduce((sum, g) => sum + g * g, 0), 0);
      const scale = Math.min(1, longest / (Math.sqrt(squares) + 1e-6));
      this.steps += 1;
      const [first, second] = [1 - 0.9 ** this.steps, 1 - 0.999 ** this.steps];
      this.parameters.forEach(([values, gradient], k) => {
        const [m, v] = this.moments[k];
        for (let i = 0; i < values.length; i++) {
          const g = gradient[i] * scale;
          m[i] += 0.1 * (g - m[i]);
          v[i] += 0.001 * (g * g - v[i]);
          values[i] -= (rate * m[i]) / first / (Math.sqrt(v[i] / second) + 1e-5);
          gradient[i] = 0;
        }
      });
    }
  }

  class Learner {
    constructor(seed, args, networks = null) {
      this.random = makeRandom(seed);
      this.args = args;
      this.actor = networks ? networks.actor.map(withGradients) : makeNetwork(args.units, 2, 0.01, this.random);
      this.critic = networks ? networks.critic.map(withGradients) : makeNetwork(args.units, 1, 1, this.random);
      this.adam = new Adam(parametersOf([this.actor, this.critic]));
      this.envs = Array.from({ length: args.numEnvs }, () => new CartPole(this.random));
      this.steps = 0;
      this.episodes = []; // the last hundred lengths, which are the returns
    }
    value(state) { return forward(this.critic, state)[3][0]; }

    // Act for numSteps steps in each env. Returns the batch, an env after another.
    rollout() {
      const { gamma, lambda, numSteps, bootstrap, baseline } = this.args, batch = { obs: [], actions: [], logprobs: [], advantages: [], returns: [], values: [] };
      for (const env of this.envs) {
        const rewards = [], dones = [], values = [], nextValues = [];
        for (let t = 0; t < numSteps; t++) {
          const { probs, log } = softmax(forward(this.actor, env.state)[3]), action = this.random() < probs[0] ? 0 : 1;
          batch.obs.push(env.state);
          batch.actions.push(action);
          batch.logprobs.push(log[action]);
          values.push(this.value(env.state));
          const { terminated, truncated } = env.step(action), over = terminated || truncated;
          rewards.push(1);
          dones.push(over ? 1 : 0);
          const last = over || t === numSteps - 1; // then no next row has this state's value
          nextValues.push(terminated || (truncated && !bootstrap) ? 0 : last ? this.value(env.state) : null);
          if (over) {
            this.episodes = [...this.episodes, env.length].slice(-100);
            env.reset();
          }
        }
        nextValues.forEach((next, t) => { if (next === null) nextValues[t] = values[t + 1]; });
        const advantages = computeGae(rewards, values, nextValues, dones, gamma, lambda);
        const returns = advantages.map((a, t) => a + values[t]);
        batch.advantages.push(...(baseline ? advantages : returns));
        batch.returns.push(...returns);
        batch.values.push(...values);
      }
      this.steps += batch.obs.length;
      return batch;
    }

    // Add the gradients of the loss over the samples idx. Returns metrics.
    gradients(batch, idx) {
      const { clip, vfClip, entCoef, normAdv, edge = clip } = this.args, count = idx.length;
      let advantages = idx.map((i) => batch.advantages[i]);
      if (normAdv) {
        const [centre, spread] = [mean(advantages), Math.sqrt(variance(advantages)) + 1e-8];
        advantages = advantages.map((a) => (a - centre) / spread);
      }
      const metrics = { kl: 0, clipFrac: 0, entropy: 0 };
      idx.forEach((i, k) => {
        const outputs = forward(this.actor, batch.obs[i]), { probs, log } = softmax(outputs[3]), action = batch.actions[i];
        const logRatio = log[action] - batch.logprobs[i], ratio = Math.exp(logRatio);
        const clipped = Math.min(Math.max(ratio, 1 - clip), 1 + clip), A = advantages[k];
        const slope = ratio * A <= clipped * A ? -ratio * A : 0; // of the loss by log[action]: the clipped branch has none
        const entropy = -probs.reduce((total, p, j) => total + p * log[j], 0);
        backward(this.actor, outputs, probs.map((p, j) => (slope * ((j === action) - p) + entCoef * p * (log[j] + entropy)) / count));
        const values = forward(this.critic, batch.obs[i]), value = values[3][0], old = batch.values[i], target = batch.returns[i];
        const moved = old + Math.min(Math.max(value - old, -vfClip), vfClip);
        const idle = (moved - target) ** 2 > (value - target) ** 2; // the larger error counts, and this one stands still
        backward(this.critic, values, [idle && moved !== value ? 0 : (0.5 * (value - target)) / count]);
        metrics.kl += (ratio - 1 - logRatio) / count;
        metrics.clipFrac += (ratio < 1 - edge || ratio > 1 + edge) / count; // edge: also without the clip
        metrics.entropy += entropy / count;
      });
      return metrics;
    }

    // Several passes over the batch, in minibatches of shuffled samples. Returns the mean metrics.
    update(batch, orders = null) {
      const { epochs, minibatches, rate } = this.args, size = batch.obs.length / minibatches, history = [];
      for (let epoch = 0; epoch < epochs; epoch++) {
        const order = orders ? orders[epoch] : this.shuffled(batch.obs.length);
        for (let start = 0; start < order.length; start += size) {
          history.push(this.gradients(batch, order.slice(start, start + size)));
          this.adam.step(rate, 0.5);
        }
      }
      const metrics = Object.fromEntries(Object.keys(history[0]).map((name) => [name, mean(history.map((x) => x[name]))]));
      metrics.explained = 1 - variance(batch.returns.map((x, i) => x - batch.values[i])) / variance(batch.returns);
      return metrics;
    }
    shuffled(count) {
      const order = Array.from({ length: count }, (_, i) => i);
      for (let i = count - 1; i > 0; i--) {
        const j = Math.floor(this.random() * (i + 1));
        [order[i], order[j]] = [order[j], order[i]];
      }
      return order;
    }
  }
  return { Learner, CartPole, forward, softmax, computeGae, makeRandom };
}
