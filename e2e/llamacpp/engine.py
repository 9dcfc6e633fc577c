"""Runs llama.cpp's server with a small model of random weights, and prints the address.

Usage: engine.py MODEL_FILE

The model file is created first.
"""

import signal
import sys

import gguf
import numpy
import xllamacpp

WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT, SLOTS = 256, 4, 4, 1024, 2048, 2
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, "\u2581"]
TYPES = [gguf.TokenType.UNKNOWN, *2 * [gguf.TokenType.CONTROL], *256 * [gguf.TokenType.BYTE], gguf.TokenType.NORMAL]


def write_model(path):
    random = numpy.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")

    def weights(name, *shape):
        w.add_tensor(name + ".weight", (random.standard_normal(shape) / 16).astype(numpy.float32))

    def norm(name):
        w.add_tensor(name + ".weight", numpy.ones(WIDTH, numpy.float32))

    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_vocab_size(len(TOKENS))
    w.add_tokenizer_model("llama")
    w.add_token_list(TOKENS)
    w.add_token_scores([0.0] * len(TOKENS))
    w.add_token_types(TYPES)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    weights("token_embd", len(TOKENS), WIDTH)
    norm("output_norm")
    weights("output", len(TOKENS), WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        norm(block + "attn_norm")
        norm(block + "ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(block + name, WIDTH, WIDTH)
        weights(block + "ffn_gate", HIDDEN, WIDTH)
        weights(block + "ffn_up", HIDDEN, WIDTH)
        weights(block + "ffn_down", WIDTH, HIDDEN)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def parameters(path):
    p = xllamacpp.CommonParams()
    p.model.path = path
    p.hostnames, p.port = ["127.0.0.1"], 0
    p.n_parallel, p.n_ctx = SLOTS, SLOTS * CONTEXT
    p.ctx_shift = True
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.fit_params = p.warmup = False
    return p


if __name__ == "__main__":
    write_model(sys.argv[1])
    server = xllamacpp.Server(parameters(sys.argv[1]))
    print(server.listening_address, flush=True)
    signal.pause()
