package simulated

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testCost = Cost{PrefillTokensPerSecond: 1000, DecodeStep: 10 * time.Millisecond, DecodeStepPerRequest: time.Millisecond}

// runToEnd runs a batch in virtual time until it is idle and returns that time.
func runToEnd(b *Batch) (now time.Duration) {
	for b.Begin() {
		now += b.Step()
		b.Finish(1)
	}
	return now
}

func TestBatchLoneSequenceTakesPrefillAndOneStepPerToken(t *testing.T) {
	for _, prompt := range []int{1, 100, prefillChunk, 3*prefillChunk + 5} {
		b := NewBatch(testCost, NewCache(1<<20, 16), 8)
		b.Add(&Sequence{Prompt: prompt, Choices: 1, Limit: 7})
		if got, want := runToEnd(b), testCost.Prefill(prompt)+7*testCost.Decode(1); got.Round(time.Microsecond) != want.Round(time.Microsecond) {
			t.Errorf("a prompt of %d took %v, want %v", prompt, got, want)
		}
	}
}

func TestBatchLongPromptDelaysRunningChoices(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	choices := &Sequence{Prompt: 1, Choices: 1, Limit: 100}
	b.Add(choices)
	b.Begin()
	b.Finish(1)
	long := &Sequence{Prompt: 3 * prefillChunk, Choices: 1, Limit: 1}
	b.Add(long)
	for range 3 {
		b.Begin()
		b.Finish(1)
	}
	if long.generated != 1 || choices.generated != 4 {
		t.Errorf("after three chunks the long prompt has %d tokens and the running choice %d, want 1 and 4", long.generated, choices.generated)
	}
}

func TestBatchAdmitsInOrderAsRoomAndMemoryAllow(t *testing.T) {
	b := NewBatch(testCost, NewCache(10*16, 16), 2)
	var done []string
	add := func(name string, prompt, limit int) {
		s := &Sequence{Prompt: prompt, Choices: 1, Limit: limit}
		s.Progress = func(generated int) {
			if generated == limit {
				done = append(done, name)
			}
		}
		if err := b.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	add("long", 16, 60)
	add("short", 16, 10)
	add("big", 80, 50) // 9 of 10 blocks: only fits alone
	add("small", 16, 1)
	b.Begin()
	if b.Running() != 2 || b.Waiting() != 2 {
		t.Fatalf("%d running, %d waiting; want the 2 places taken", b.Running(), b.Waiting())
	}
	runToEnd(b)
	if want := []string{"short", "long", "big", "small"}; !slices.Equal(done, want) {
		t.Errorf("done in order %v, want %v: what fits never overtakes what does not yet", done, want)
	}
	if b.cache.Held() != 0 {
		t.Errorf("%d blocks held by an empty batch", b.cache.Held())
	}
	if err := b.Add(&Sequence{Prompt: 100, Choices: 2, Limit: 31}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("162 tokens for a cache of 160: %v", err)
	}
}

func TestBatchRemoveShortensTheStepAndFreesMemory(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	prompt := &Sequence{Prompt: 1000, Choices: 1, Limit: 5}
	choice := &Sequence{Prompt: 1, Choices: 1, Limit: 5}
	b.Add(choice)
	b.Add(prompt)
	b.Begin()
	b.Remove(prompt)
	if got, want := b.Step(), testCost.Step(1, 1); got != want {
		t.Errorf("the step without the removed prompt takes %v, want %v", got, want)
	}
	b.Remove(prompt)
	b.Remove(choice)
	if b.Step() != 0 || b.Running() != 0 || b.cache.Held() != 0 {
		t.Errorf("an emptied batch steps %v, runs %d, holds %d", b.Step(), b.Running(), b.cache.Held())
	}
	if b.Finish(1); b.Totals().GeneratedTokens != 0 || b.Totals().PromptTokens != 0 {
		t.Errorf("removed sequences were computed: %+v", b.Totals())
	}
}

func TestBatchNextTurnFindsPromptAndResponseInCache(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	chain := chainFrom(make([]uint64, 10)) // 160 tokens
	b.Add(&Sequence{Prompt: 64, Choices: 1, Limit: 64, Chain: chain[:8]})
	runToEnd(b)
	next := &Sequence{Prompt: 160, Choices: 1, Limit: 1, Chain: chain}
	b.Add(next)
	runToEnd(b)
	// Of 128 tokens the last one has not passed through the model, so 7 blocks of 16 are complete.
	if next.Cached() != 112 {
		t.Errorf("%d tokens cached, want 112", next.Cached())
	}
	again := &Sequence{Prompt: 160, Choices: 1, Limit: 1, Chain: chain}
	b.Add(again)
	runToEnd(b)
	if again.Cached() != 144 {
		t.Errorf("%d tokens of a known prompt cached, want all blocks but the last", again.Cached())
	}
	if got, want := b.Totals(), (Totals{QueriedTokens: 384, HitTokens: 256, PromptTokens: 384, CachedTokens: 256, GeneratedTokens: 66}); got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}

func TestBatchSharesCompleteBlocksAtOnce(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	chain := chainFrom(make([]uint64, 2))
	b.Add(&Sequence{Prompt: 17, Choices: 1, Limit: 20, Chain: chain})
	for step := 1; b.Begin(); step++ {
		b.Finish(1)
		want := 1
		if step >= 16 { // 17 tokens and 16, the last of which is not in memory
			want = 2
		}
		if n := b.cache.Match(chain); n != want {
			t.Errorf("%d blocks in memory after step %d, want %d", n, step, want)
		}
	}
}

func TestBatchAbandonedPrefillKeepsComputedBlocks(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	chain := chainFrom(make([]uint64, 60)) // hashes of a path; deep enough for three chunks of a 20-token block
	b.cache = NewCache(1<<20, 128)
	s := &Sequence{Prompt: 60 * 128, Choices: 1, Limit: 1, Chain: chain}
	b.Add(s)
	b.Begin()
	b.Finish(1)
	b.Begin()
	b.Remove(s)
	if got := b.cache.Match(chain); got != prefillChunk/128 {
		t.Errorf("%d blocks known after one of several chunks, want %d", got, prefillChunk/128)
	}
}

func TestBatchChoicesGrowTogetherAndCountEach(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	b.Add(&Sequence{Prompt: 10, Choices: 4, Limit: 3})
	if got, want := runToEnd(b), testCost.Prefill(10)+3*testCost.Decode(4); got != want {
		t.Errorf("took %v, want %v", got, want)
	}
	if got := b.Totals().GeneratedTokens; got != 12 {
		t.Errorf("%d tokens generated, want 12", got)
	}
}

func TestBatchSequenceWithoutChoicesEndsWithItsPrompt(t *testing.T) {
	b := NewBatch(testCost, NewCache(1<<20, 16), 8)
	progress := []int{}
	b.Add(&Sequence{Prompt: 3000, Choices: 1, Progress: func(generated int) { progress = append(progress, generated) }})
	if got := runToEnd(b); got != testCost.Prefill(3000) {
		t.Errorf("took %v, want the prefill alone", got)
	}
	if !slices.Equal(progress, []int{0}) {
		t.Errorf("progress was called with %v, want once with 0", progress)
	}
}

func TestBatchAlikeStepsCanBeTakenAtOnce(t *testing.T) {
	begun := func(blocks int, leap func(alike int) int, prompts ...Sequence) (steps int, events []string) {
		b := NewBatch(testCost, NewCache(blocks*128, 128), 8)
		now := time.Duration(0)
		for i := range prompts {
			s := &prompts[i]
			s.Progress = func(generated int) {
				if generated <= 1 || generated == s.Limit {
					events = append(events, fmt.Sprint(i, " has ", generated, " at ", now, " with ", s.Cached(), " cached"))
				}
			}
			b.Add(s)
		}
		for ; b.Begin(); steps++ {
			n := leap(b.Alike())
			now += time.Duration(n) * b.Step()
			b.Finish(n)
		}
		return steps, append(events, fmt.Sprint(now, b.Totals(), b.cache.idle))
	}
	one, whole := func(int) int { return 1 }, func(alike int) int { return alike }
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.IntRange(40, 100).Draw(t, "blocks")
		prompts := make([]Sequence, rapid.IntRange(1, 6).Draw(t, "prompts"))
		for i := range prompts {
			tokens := 1024*rapid.IntRange(0, 5).Draw(t, "1024s") + rapid.SampledFrom([]int{-128, -1, 0, 1, 50}).Draw(t, "tokens")
			chain := chainFrom(make([]uint64, 60)) // half of the prompts are equal
			if rapid.Bool().Draw(t, "other") {
				chain = chainFrom(slices.Repeat([]uint64{1}, 60))
			}
			s := Sequence{Prompt: max(1, tokens), Choices: rapid.IntRange(1, 2).Draw(t, "choices"), Limit: rapid.IntRange(0, 9).Draw(t, "limit")}
			s.Chain = chain[:s.Prompt/128]
			prompts[i] = s
		}
		_, each := begun(blocks, one, slices.Clone(prompts)...)
		some := func(alike int) int { return rapid.IntRange(1, alike).Draw(t, "leap") }
		for _, leap := range []func(alike int) int{some, whole} {
			if _, events := begun(blocks, leap, slices.Clone(prompts)...); !slices.Equal(each, events) {
				t.Fatalf("step by step: %q\nin leaps: %q", each, events)
			}
		}
	})
	long := Sequence{Prompt: 3 * prefillChunk, Choices: 1, Limit: 9}
	_, each := begun(200, one, long, long)
	// The first prompt without its last chunk, that chunk; the same for the second prompt; the rest
	// of the first choice; the rest of the second one.
	if steps, events := begun(200, whole, long, long); steps != 6 || !slices.Equal(each, events) {
		t.Errorf("two long prompts and their choices were begun %d times, want 6\nstep by step: %q\nin leaps: %q", steps, each, events)
	}
}
