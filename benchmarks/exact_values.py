"""ppo_llm.py with exact values in place of its critic, on sorting: the most that a critic can be worth.

    python benchmarks/exact_values.py --seed 1    # any flag of ppo_llm.py

A state is a prompt and the tokens so far; its value is the probability that the policy answers rightly from
there: 0 if a token is wrong, else the product of the probabilities of those that are still to come.
"""

import torch
from torch import Tensor

from variants import ppo_llm


@torch.no_grad()
def exact_value(agent: ppo_llm.Agent, tokens: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
    """Values (N, T) of the states before a completion's tokens, of prompts of five digits and a sign."""
    T = mask.shape[1]
    prompts, said = tokens[:, :-T], tokens[:, -T:]
    right = torch.cat([prompts[:, -6:-1].sort(1).values, agent.ends[:1].expand(len(tokens), 1)], 1)
    rows = torch.cat([prompts, right], 1)
    logprobs = agent(rows, torch.ones_like(rows, dtype=torch.bool), right)
    to_come = logprobs.flip(1).cumsum(1).flip(1).exp()  # (N, 6)
    values = torch.zeros(mask.shape)
    steps = min(T, 6)
    so_far = (said[:, :steps] == right[:, :steps]).long().cumprod(1)
    values[:, :steps] = to_come[:, :steps]
    values[:, 1:steps] *= so_far[:, : steps - 1]
    return values


if __name__ == "__main__":
    ppo_llm.__doc__, ppo_llm.Agent.value = __doc__, exact_value
    ppo_llm.main()
