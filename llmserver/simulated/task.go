package simulated

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// A task is the tokenized content of a request.
type task struct {
	model        string
	prompts      [][]token // none of them empty
	promptSeeds  []uint64  // per prompt; choices and ID derive from them
	choices      int       // per prompt
	maxTokens    int       // of each choice
	finishReason string    // of every choice
	stream       bool
	includeUsage bool
	chat         bool
	tool         string // the function called by the response; "" for a response in words
}

// sequences returns the prompts for the batch. The words of the first choice are part of the chain,
// since a client repeats them in the next request.
func (t *task) sequences() []*Sequence {
	sequences := make([]*Sequence, len(t.prompts))
	for i, prompt := range t.prompts {
		whole := prompt
		if t.tool == "" {
			seed := t.choiceSeed(i, 0)
			for k := range t.maxTokens {
				whole = tokenize(whole, word(seed, k))
			}
		}
		sequences[i] = &Sequence{Prompt: len(prompt), Choices: t.choices, Limit: t.maxTokens, Chain: hashChain(whole)}
	}
	return sequences
}

// choiceSeed returns the seed of the words of one choice.
func (t *task) choiceSeed(prompt, choice int) uint64 {
	return mix(t.promptSeeds[prompt] + uint64(choice))
}

// setPrompts sets the prompts and their seeds, and returns t.
func (t *task) setPrompts(prompts ...[]token) *task {
	t.prompts = prompts
	for _, prompt := range prompts {
		t.promptSeeds = append(t.promptSeeds, hashPrompt(prompt))
	}
	return t
}

// id returns the response's ID, which is the same for the same task on every engine.
func (t *task) id() string {
	digest := xxhash.New()
	fmt.Fprintln(digest, t.promptSeeds, t.choices, t.maxTokens, t.tool)
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
