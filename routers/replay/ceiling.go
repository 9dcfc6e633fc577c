package replay

// Ceiling is the part of all prompt tokens that the best of routers would find in unlimited
// caches: those of leading blocks that an earlier request carried, the block with the last
// token of a prompt excepted, which is always computed. It is worked out once.
func (t *Trace) Ceiling() float64 {
	t.measure.Do(func() {
		known := prefixes{to: make(map[turnoff]int), from: make([]stretch, 1)}
		hits, total := 0, 0
		for i := range t.Requests {
			r := &t.Requests[i]
			hits += min(known.add(r.seed, r.runs, r.Prompt/t.BlockTokens), (r.Prompt-1)/t.BlockTokens) * t.BlockTokens
			total += r.Prompt
		}
		t.ceiling = ratio(float64(hits), float64(total))
	})
	return t.ceiling
}

// prefixes is a set of prompts and of all their beginnings: a tree in which a run of ids leads from each node to the next, so
// that what it costs is a matter of how often prompts part, and not of how long they are.
type prefixes struct {
	to   map[turnoff]int // the node that a run leads to
	from []stretch       // by node, what leads to it; node 0 is where all begin
}

// turnoff is a node and the first id of a run that leads on from it, of which there is one at most.
type turnoff struct {
	node  int
	first uint64
}

// stretch is a run between two nodes.
type stretch struct {
	run
	on bool // something leads on from its end
}

// add adds the first whole blocks of a prompt, or all if it has fewer, and returns how many of them, from the start, an earlier
// one had in common with it. The seed is the id before all others, so prompts of different seeds have nothing in common.
func (p *prefixes) add(seed uint64, runs []run, whole int) (known int) {
	passed, ahead := 0, p.to[turnoff{0, seed}] // the last node, and the one ahead
	if ahead == 0 {
		ahead = p.lead(0, run{seed, 1})
	}
	left := p.from[ahead].count - 1 // ids on the way there
	for _, r := range runs {
		r.count = min(r.count, whole)
		whole -= r.count
		for r.count > 0 {
			if left == 0 {
				passed = ahead
				if ahead = p.to[turnoff{passed, r.first}]; ahead == 0 {
					ahead = p.lead(passed, r)
					break
				}
				left = p.from[ahead].count
			}
			if on := p.from[ahead]; on.first+uint64(on.count-left) != r.first {
				ahead, left = p.part(passed, ahead, left), 0
				continue
			}
			same := min(left, r.count)
			left -= same
			known += same
			r.first += uint64(same)
			r.count -= same
		}
	}
	return known
}

// lead has a run lead on from a node, to a new one unless the node is an end that the run goes on from with the next id.
func (p *prefixes) lead(passed int, r run) (ahead int) {
	if s := &p.from[passed]; !s.on && passed > 0 && s.first+uint64(s.count) == r.first {
		s.count += r.count
		return passed
	}
	ahead = len(p.from)
	p.from[passed].on = true
	p.from = append(p.from, stretch{run: r})
	p.to[turnoff{passed, r.first}] = ahead
	return ahead
}

// part makes a node between two others, so many ids before the second.
func (p *prefixes) part(passed, ahead, left int) (between int) {
	s := &p.from[ahead]
	walked := run{s.first, s.count - left}
	s.first, s.count = s.first+uint64(walked.count), left
	between = len(p.from)
	p.to[turnoff{passed, walked.first}] = between
	p.to[turnoff{between, s.first}] = ahead
	p.from = append(p.from, stretch{walked, true})
	return between
}
