// Package prefixindex records which holder has cached which prompt prefixes, in a fixed number of
// bytes.
//
// A holder is an LLM server with a prefix cache. A prompt is the sequence of chained hashes of its
// blocks: each hash stands for one block and all blocks before, so two prompts share a prefix
// exactly as far as their hashes are equal. An [Index] estimates the content of each cache from the
// prompts sent there:
//
//	x := prefixindex.New(64<<20, 0, value)
//	h := x.Add()
//	known, p := x.Insert(h, blocks)   // the prompt is sent to h
//	x.Settle(p, succeeded)            // h has responded, or has not
//	longest := x.Match(other)         // how much of another prompt each holder has
//
// # Structure
//
// The index is a radix tree over checkpoints. A checkpoint is the hash of one of a prompt's blocks;
// every block has one up to block 64, then every 2nd up to 128, every 4th up to 256 and so on, so a
// prompt of n blocks costs O(log n) checkpoints and a match is exact to 1/32 of its length. A node
// is a run of up to 12 checkpoints held together; a node is split where a prompt leaves or ends
// within the run.
//
//	                         ┌─▶ node 2 [h13 … h20]   holdings: 0
//	node 1 [h1 … h12] ───────┤
//	holdings: 0, 3           └─▶ node 3 [g13 g14]     holdings: 3
//
//	holder 0: newest ─ node 1 ─ node 2 ─ oldest       one LRU list of holdings per holder
//	holder 3: newest ─ node 1 ─ node 3 ─ oldest
//
// Nodes and holdings live in arenas and refer to each other by index, so that the garbage collector
// has nothing to scan. A child is found by the hash of its first checkpoint, in one table for all
// nodes: a chained hash determines its parent.
//
// A radix tree with LRU eviction is the structure by which engines manage the cache itself
// (RadixAttention: Zheng et al., "SGLang: Efficient Execution of Structured Language Model
// Programs", 2024). This one holds hashes instead of tokens, and one LRU list per holder.
package prefixindex
