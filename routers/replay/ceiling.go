package replay

// Ceiling returns the share of all prompt tokens found by unlimited caches behind a perfect router:
// the tokens of leading blocks of earlier requests, except for the block with the last token of a
// prompt, which is always computed. Further calls return the same without computing.
func (t *Trace) Ceiling() float64 {
	t.measure.Do(func() {
		known := prefixTree{nodes: make(map[edgeKey]int), edges: make([]edge, 1)}
		hits, total := 0, 0
		for i := range t.Requests {
			r := &t.Requests[i]
			hits += min(known.insert(r.seed, r.runs, r.Prompt/t.BlockTokens), (r.Prompt-1)/t.BlockTokens) * t.BlockTokens
			total += r.Prompt
		}
		t.ceiling = ratio(float64(hits), float64(total))
	})
	return t.ceiling
}

// A prefixTree is a set of prompts and their prefixes: a radix tree with runs of ids as edges. The
// cost of an insertion depends on the number of edges, not on the length of the prompt.
type prefixTree struct {
	nodes map[edgeKey]int // the node at the end of an edge
	edges []edge          // by node, the edge leading there; node 0 is the root
}

// An edgeKey is a node and the first id of an outgoing edge, which is unique for the node.
type edgeKey struct {
	node  int
	first uint64
}

// An edge is a run between two nodes.
type edge struct {
	run
	inner bool // the node at the end has outgoing edges
}

// insert adds the first n blocks of a prompt, or all if there are fewer, and returns the number of
// leading blocks in common with earlier prompts. The seed is the id before all others: prompts of
// different seeds have no prefix in common.
func (p *prefixTree) insert(seed uint64, runs []run, n int) (known int) {
	from, to := 0, p.nodes[edgeKey{0, seed}] // the ends of the current edge
	if to == 0 {
		to = p.addEdge(0, run{seed, 1})
	}
	left := p.edges[to].count - 1 // ids of the current edge before the end
	for _, r := range runs {
		r.count = min(r.count, n)
		n -= r.count
		for r.count > 0 {
			if left == 0 {
				from = to
				if to = p.nodes[edgeKey{from, r.first}]; to == 0 {
					to = p.addEdge(from, r)
					break
				}
				left = p.edges[to].count
			}
			if e := p.edges[to]; e.first+uint64(e.count-left) != r.first {
				to, left = p.splitEdge(from, to, left), 0
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

// addEdge adds an edge from a node to a new one and returns the new node. A run continuing the edge
// to a leaf extends that edge instead.
func (p *prefixTree) addEdge(from int, r run) (to int) {
	if e := &p.edges[from]; !e.inner && from > 0 && e.first+uint64(e.count) == r.first {
		e.count += r.count
		return from
	}
	to = len(p.edges)
	p.edges[from].inner = true
	p.edges = append(p.edges, edge{run: r})
	p.nodes[edgeKey{from, r.first}] = to
	return to
}

// splitEdge inserts a node into the edge between two nodes, left ids before its end.
func (p *prefixTree) splitEdge(from, to, left int) (between int) {
	e := &p.edges[to]
	head := run{e.first, e.count - left}
	e.first, e.count = e.first+uint64(head.count), left
	between = len(p.edges)
	p.nodes[edgeKey{from, head.first}] = between
	p.nodes[edgeKey{between, e.first}] = to
	p.edges = append(p.edges, edge{head, true})
	return between
}
