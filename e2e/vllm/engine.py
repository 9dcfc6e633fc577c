"""Runs vLLM's server on CPU with a tiny random Llama: engine.py DIR FLAGS...

DIR receives the configuration and the tokenizer of the model. There are no weights: vLLM makes
random ones. Each byte is a token.
"""

import json
import os
import pathlib
import runpy
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def write_model(home):
    home.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "model_max_length": 4096,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
    }))
    (home / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "vocab_size": len(vocabulary),
        "eos_token_id": 0,
        "bos_token_id": 0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }))


if __name__ == "__main__":
    model = pathlib.Path(sys.argv[1])
    write_model(model)
    os.environ.update(
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_CPU_KVCACHE_SPACE="1",
        OMP_NUM_THREADS="1",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    sys.argv = [
        "vllm", "--model", str(model), "--load-format", "dummy", "--enforce-eager", "--max-model-len", "4096",
        "--host", "127.0.0.1", *sys.argv[2:],
    ]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
