"""Tiny new models of many families: what they are sampled from is what they learn, or one line says why not.

python tests/test_models.py    # a table: how far apart both are, or why a family is refused
"""

import argparse
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertTokenizerFast,
    ByT5Tokenizer,
)
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the command
from variants import grpo, ppo_llm  # noqa: E402

SCRIPTS = {"ppo_llm": ppo_llm, "grpo": grpo}
PROMPTS = ["3>", "1234567890123456789>", "12>", "98765>"]

# Names of sizes differ. Weights are large, so that what is forgotten shows; windows are shorter than texts.
SHARP = dict(initializer_range=0.2)
NEOX = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **SHARP)
NEOX |= dict(max_position_embeddings=128)
LLAMA = NEOX | dict(num_key_value_heads=2)
WIDTH = LLAMA | dict(head_dim=8)
WINDOW = dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])
GEMMA = WIDTH | WINDOW | dict(query_pre_attn_scalar=8)
GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, **SHARP)
OPT = dict(hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, init_std=0.2)
OPT |= dict(max_position_embeddings=128, word_embed_proj_dim=32)
LOCAL = dict(num_local_experts=4, num_experts_per_tok=2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
ROUTED = EXPERTS | dict(n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1)
ROUTED |= dict(first_k_dense_replace=1)
LATENT = NEOX | ROUTED | dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4)
LATENT |= dict(qk_nope_head_dim=4, v_head_dim=8)
MAMBA = dict(hidden_size=32, num_hidden_layers=2, state_size=8, **SHARP)
SSM = dict(mamba_d_state=8, mamba_d_conv=4, mamba_expand=2)
SSD = SSM | dict(mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_chunk_size=8)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
DELTA |= dict(layer_types=["linear_attention", "full_attention"])
SHARED = EXPERTS | dict(shared_expert_intermediate_size=16)
ZAMBA = NEOX | dict(num_key_value_heads=4, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2)
ZAMBA |= dict(use_mamba_kernels=False)

FAMILIES = {  # as AutoConfig calls them; what follows a slash is for people
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": dict(hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=128, window_size=8)
    | dict(attention_types=[[["global", "local"], 1]], **SHARP),
    "gpt_neox": NEOX,
    "gptj": GPT | dict(rotary_dim=4),
    "codegen": GPT | dict(rotary_dim=4, n_ctx=128),
    "opt": OPT,
    "opt / 350m": OPT | dict(word_embed_proj_dim=16, do_layer_norm_before=False),
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4, **SHARP),
    "mpt": dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=128, expansion_ratio=2, **SHARP),
    "falcon / rotary": NEOX,
    "falcon / alibi": NEOX | dict(alibi=True),
    "xglm": dict(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, init_std=0.2)
    | dict(max_position_embeddings=128),
    "biogpt": NEOX,
    "ctrl": GPT | dict(dff=48),
    "llama": LLAMA,
    "mistral": LLAMA | dict(sliding_window=8),
    "mixtral": LLAMA | LOCAL,
    "qwen2": LLAMA,
    "qwen2_moe": LLAMA | SHARED,
    "qwen3": WIDTH,
    "qwen3_moe": WIDTH | EXPERTS,
    "gemma": WIDTH,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gemma3n_text": WIDTH
    | dict(final_logit_softcapping=1e6)  # which leaves logits as they are
    | WINDOW
    | dict(vocab_size_per_layer_input=259, hidden_size_per_layer_input=8, num_kv_shared_layers=0)
    | dict(laurel_rank=4, activation_sparsity_pattern=[0.0, 0.0], intermediate_size=[48, 48]),
    "gemma4_text": WIDTH
    | WINDOW
    | dict(vocab_size_per_layer_input=259, hidden_size_per_layer_input=8, num_kv_shared_layers=0),
    "phi": LLAMA,
    "phi3": LLAMA,
    "phimoe": LLAMA | LOCAL,
    "stablelm": LLAMA,
    "cohere": LLAMA | dict(logit_scale=1.0),
    "cohere2": LLAMA | WINDOW | dict(logit_scale=1.0),
    "olmo": LLAMA,
    "olmo2": LLAMA,
    "olmo3": LLAMA | WINDOW,
    "olmoe": LLAMA | EXPERTS,
    "granite": LLAMA,
    "granitemoe": LLAMA | LOCAL,
    "smollm3": LLAMA,
    "starcoder2": LLAMA | dict(sliding_window=8),
    "persimmon": NEOX,
    "nemotron": LLAMA,
    "helium": WIDTH,
    "glm": WIDTH,
    "glm4": WIDTH,
    "glm4_moe": WIDTH | ROUTED,
    "exaone4": LLAMA,
    "arcee": LLAMA,
    "apertus": LLAMA,
    "seed_oss": WIDTH,
    "ernie4_5": WIDTH,
    "hunyuan_v1_dense": WIDTH,
    "gpt_oss": WIDTH | WINDOW | dict(num_local_experts=4),
    "llama4_text": WIDTH
    | dict(num_local_experts=2, intermediate_size_mlp=48, attention_chunk_size=8)
    | dict(layer_types=["chunked_attention", "full_attention"]),
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "dots1": WIDTH | ROUTED,
    "minimax_m2": WIDTH | LOCAL,
    "bamba": LLAMA | SSD | dict(attn_layer_indices=[1]),
    "jamba": LLAMA
    | SSM
    | dict(mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False)
    | dict(num_experts=2, expert_layer_period=2, expert_layer_offset=1),
    "zamba": ZAMBA
    | dict(num_hidden_layers=4, layers_block_type=["mamba", "hybrid"] * 2, mamba_dt_rank=4, n_mamba_heads=2)
    | dict(attention_hidden_size=64, attention_head_dim=16),
    "zamba2": ZAMBA
    | dict(layers_block_type=["mamba", "hybrid"], n_mamba_heads=4, mamba_headdim=16, mamba_ngroups=1)
    | dict(chunk_size=8, num_mem_blocks=1, adapter_rank=4, use_mem_rope=True),
    "falcon_h1": WIDTH | SSD | dict(mamba_d_ssm=64),
    "nemotron_h": WIDTH
    | dict(layers_block_type=["mamba", "attention"], mamba_num_heads=4, mamba_head_dim=16, n_groups=1)
    | dict(ssm_state_size=8, chunk_size=8),
    "granitemoehybrid": LLAMA
    | SSD
    | dict(layer_types=["mamba", "attention"], num_local_experts=0, shared_intermediate_size=48),
    "lfm2": LLAMA | dict(layer_types=["conv", "full_attention"]),
    "qwen3_next": WIDTH | SHARED | DELTA,
    "qwen3_5_text": WIDTH | DELTA,
    "olmo_hybrid": LLAMA | DELTA,
    "minimax": WIDTH | LOCAL | dict(layer_types=["linear_attention", "full_attention"], block_size=8),
    "recurrent_gemma": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, lru_width=32)
    | dict(num_attention_heads=4, head_dim=8, attention_window_size=32),
    "mamba": MAMBA,
    "mamba2": MAMBA | dict(num_heads=4, head_dim=16, n_groups=1, chunk_size=8),
    "falcon_mamba": MAMBA,
    "rwkv": dict(hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, context_length=128),
    "xlstm": dict(hidden_size=32, embedding_dim=32, num_hidden_layers=2, num_heads=4),
    "openai-gpt": GPT,
    "xlnet": dict(d_model=32, n_layer=2, n_head=4, d_inner=48, **SHARP),
    "xlm": dict(emb_dim=32, n_layers=2, n_heads=4, causal=True, max_position_embeddings=128),
    "reformer": dict(hidden_size=32, attention_head_size=8, num_attention_heads=4, feed_forward_size=48)
    | dict(attn_layers=["local", "lsh"], is_decoder=True, axial_pos_embds=False, num_buckets=4)
    | dict(local_attn_chunk_length=8, lsh_attn_chunk_length=8, max_position_embeddings=128),
}
REFUSED = ("minimax", "recurrent_gemma", "mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")
REFUSED += ("openai-gpt", "xlnet", "xlm", "reformer")


def make_agent(script, family):
    """An agent with such a model, always the same."""

    def make_model(args):
        torch.manual_seed(0)
        ends = dict(vocab_size=259, pad_token_id=0, eos_token_id=1, bos_token_id=None)
        config = AutoConfig.for_model(family.split(" /")[0], **ends | FAMILIES[family])
        return ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(config)

    original, script.make_model = script.make_model, make_model
    try:
        return script.Agent(script.Args(model=family, max_new_tokens=6))
    finally:
        script.make_model = original


@torch.no_grad()
def difference(script, agent):
    """The largest of log-probabilities, sampled with a cache and learned in one pass, padded and alone."""
    steps, act = [], agent.act

    def spy(logits, greedy):
        token = act(logits, greedy)
        steps.append(torch.log_softmax(logits, -1).gather(1, token[:, None])[:, 0])
        return token

    agent.act = spy
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS)
    agent.act = act
    sampled = torch.stack(steps, 1)

    found = [(agent(tokens, attended, mask) - sampled)[mask].abs().max().item()]
    for n in range(len(PROMPTS)):
        row, counts = tokens[n][attended[n]][None], mask[n][mask[n]][None]
        alone = agent(row, torch.ones_like(row, dtype=torch.bool), counts)
        found.append((alone[0] - sampled[n][mask[n]]).abs().max().item())
    return max(found)


def check(script, agent, family):
    """What is said of the model when training begins, if it does not."""
    try:
        script.check_model(agent, script.Args(model=family, max_new_tokens=6), PROMPTS)
    except script.Mistake as mistake:
        return str(mistake)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_sampled_is_learned_or_refused(script, family):
    agent = make_agent(script, family)
    said = check(script, agent, family)
    if family in REFUSED:
        assert said.startswith(f"--model {family} is not sampled as it is trained: ")
    else:
        assert said is None
        assert difference(script, agent) < 1e-3


@pytest.mark.parametrize("family", ["opt / 350m", "gemma3n_text", "bloom", "mpt", "lfm2"])
def test_the_critic_sees_what_the_last_layer_sees(family):
    """However wide that is, and whatever the model makes of it."""
    agent = make_agent(ppo_llm, family)
    agent.copy_model()
    tokens, attended, mask, *_ = ppo_llm.complete(agent, PROMPTS)
    head = agent.critic.get_output_embeddings()
    assert not agent.value(tokens, attended, mask).any()  # at first
    head.weight.data = agent.model.get_output_embeddings().weight.data[7:8]  # a logit
    logits = agent.logits(agent.model, tokens[:, :-1], attended[:, :-1], mask.shape[1])[..., 7]
    torch.testing.assert_close(agent.value(tokens, attended, mask), logits, atol=1e-4, rtol=0)


# ---- reward models

BERT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **SHARP)
BERT |= dict(max_position_embeddings=128)
BART = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, init_std=0.2)
BART |= dict(decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=128)
BART |= dict(eos_token_id=3, bos_token_id=2, decoder_start_token_id=2)
ENCODERS = {  # their texts stand between [CLS] and [SEP]
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "deberta", "deberta-v2"), BERT),
    "electra": BERT | dict(embedding_size=32),
    "albert": BERT | dict(embedding_size=16),
    "distilbert": dict(dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=128, **SHARP),
    "modernbert": BERT | dict(global_attn_every_n_layers=2, local_attention=8),
    "bart": BART,
    "t5": dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=3)
    | dict(decoder_start_token_id=2),
}
NO_JUDGES = ("codegen", "xglm", "gemma3n_text", "gemma4_text", "cohere", "cohere2", "olmoe", "granite")
NO_JUDGES += ("granitemoe", "glm4_moe", "apertus", "ernie4_5", "llama4_text", "dots1", "minimax_m2", "bamba")
NO_JUDGES += ("falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "olmo_hybrid", "recurrent_gemma")
NO_JUDGES += ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")  # transformers has no such form of them
JUDGES = [*ENCODERS, *(family for family in FAMILIES if family not in NO_JUDGES)]
BAD_JUDGES = ("bart", "t5", "xlnet", "xlm", "reformer")


def tokenizer_of_words(folder):
    digits = list("0123456789>")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *digits, *(f"##{x}" for x in digits)]
    (folder / "vocab.txt").write_text("\n".join(words))
    return BertTokenizerFast(str(folder / "vocab.txt"))


def test_an_encoder_reads_what_it_was_trained_on(tmp_path):
    texts = ppo_llm.whole_texts(tokenizer_of_words(tmp_path), False, ["1>", "2>"], ["1", "2"], [True, False])
    assert texts == ["[CLS]1>1[SEP]", "[CLS]2>2"]


def judge_of(family, folder):
    """The reward function of such a model, always the same."""
    tokenizer, ends = ByT5Tokenizer(extra_ids=0), dict(eos_token_id=1, bos_token_id=None)
    if family in ENCODERS:
        tokenizer, ends = tokenizer_of_words(folder), {}
    torch.manual_seed(0)
    sizes = dict(vocab_size=259, pad_token_id=0, num_labels=1) | ends | (ENCODERS | FAMILIES)[family]
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(family.split(" /")[0], **sizes)
    )
    return ppo_llm.make_judge(tokenizer, model.eval(), ppo_llm.Args())


@pytest.mark.parametrize("family", JUDGES)
def test_a_text_has_one_score_and_an_end_or_the_judge_is_refused(family, tmp_path):
    """Alone and beside longer texts; with an end it has another one."""
    reward, args = judge_of(family, tmp_path), ppo_llm.Args(max_new_tokens=6)
    if family in BAD_JUDGES:
        with pytest.raises(ppo_llm.Mistake, match="--reward x cannot judge: ValueError: "):
            ppo_llm.check_judge("--reward x", reward, args, PROMPTS)
        return
    ppo_llm.check_judge("--reward x", reward, args, PROMPTS)
    prompts, answers, finished = PROMPTS * 2, ["1", "22", "333", "4444"] * 2, [True] * 4 + [False] * 4
    with torch.no_grad():
        together = reward(prompts, answers, finished)
        alone = [reward([a], [b], [c])[0] for a, b, c in zip(prompts, answers, finished, strict=True)]
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(ended != cut for ended, cut in zip(together[:4], together[4:], strict=True))


def test_families_without_a_judge_have_none(tmp_path):
    for family in NO_JUDGES:
        with pytest.raises((ValueError, KeyError)):
            judge_of(family, tmp_path)


def test_the_document_has_these_judges():
    page = (Path(__file__).parents[1] / "docs/language_runs.md").read_text()
    words = page.partition("## Which models?")[2].partition("As reward models")[2]
    counts, names = words.partition(" work: ")[::2]
    assert re.findall(r"\d+", counts) == [str(len(JUDGES)), str(len(JUDGES) - len(BAD_JUDGES))]
    works, refused = names.split("\n\n")[0].split(" are refused")[0].rpartition(". ")[::2]
    assert re.findall(r"`(.+?)`", works) == [name for name in JUDGES if name not in BAD_JUDGES]
    assert tuple(re.findall(r"`(.+?)`", refused)) == BAD_JUDGES


def test_the_document_has_these_families():
    """Differences depend on the processor; what works does not."""
    page = (Path(__file__).parents[1] / "docs/language_runs.md").read_text()
    works, _, refused = page.partition("## Which models?")[2].partition("These are refused:")
    counts, names = works.partition("Tried were")[2].split(" work: ")
    assert re.findall(r"\d+", counts) == [str(len(FAMILIES)), str(len(FAMILIES) - len(REFUSED))]
    names = re.findall(r"`(.+?)`", names.partition(". Their")[0])
    assert names == [name for name in FAMILIES if name not in REFUSED]
    assert tuple(re.findall(r"^\| `(.+?)` \|", refused, re.M)) == REFUSED


def table():
    """Of all families: whether they can be trained, and how far sampling and learning are apart."""
    yield "| family | | largest difference of log-probabilities |"
    yield "|---|---|---|"
    for family in FAMILIES:
        agent = make_agent(ppo_llm, family)
        if said := check(ppo_llm, agent, family):
            yield f"| {family} | refused: {said.partition('trained: ')[2].replace('<', '&lt;')} | |"
        else:
            yield f"| {family} | works | {difference(ppo_llm, agent):.0e} |"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    logging.set_verbosity_error()
    print(*table(), sep="\n")
