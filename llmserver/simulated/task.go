package simulated

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// A task is what a request asks for, tokenised.
type task struct {
	model        string
	prompts      [][]token // none of them empty
	promptSeeds  []uint64  // what each prompt's answers, and the id, derive from
	answers      int       // per prompt
	limit        int       // tokens of each answer
	finish       string    // finish reason of every answer
	stream       bool
	includeUsage bool
	chat         bool
	tool         string // the function that the answer calls; "" is an answer in words
}

// sequences are the prompts as the batch wants them. Answers in words are part of the chain, since a client sends them
// again with its next message.
func (t *task) sequences() []*Sequence {
	sequences := make([]*Sequence, len(t.prompts))
	for i, prompt := range t.prompts {
		whole := prompt
		if t.tool == "" {
			seed := t.choiceSeed(i, 0)
			for k := range t.limit {
				whole = tokenize(whole, word(seed, k))
			}
		}
		sequences[i] = &Sequence{Prompt: len(prompt), Answers: t.answers, Limit: t.limit, Chain: hashChain(whole)}
	}
	return sequences
}

// voice is the seed of the words of one answer to one prompt.
func (t *task) choiceSeed(prompt, answer int) uint64 {
	return mix(t.promptSeeds[prompt] + uint64(answer))
}

// ask sets the prompts.
func (t *task) setPrompts(prompts ...[]token) *task {
	t.prompts = prompts
	for _, prompt := range prompts {
		t.promptSeeds = append(t.promptSeeds, hashPrompt(prompt))
	}
	return t
}

// id is the same for the same task, on every engine.
func (t *task) id() string {
	digest := xxhash.New()
	fmt.Fprintln(digest, t.promptSeeds, t.answers, t.limit, t.tool)
	sum := digest.Sum64()
	return fmt.Sprintf("%016x%016x", sum, mix(sum))
}

func hashPrompt(tokens []token) (hash uint64) {
	for len(tokens) > 0 {
		n := min(len(tokens), blockTokens)
		hash = hashTokens(hash, tokens[:n])
		tokens = tokens[n:]
	}
	return hash
}
