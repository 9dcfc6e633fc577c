package config

// renamedTimeouts maps former keys of timeouts to their current names. A former key is accepted for
// one release and then removed from the table.
var renamedTimeouts = map[string]string{"gap_s": "idle_s"}

// currentKeys returns a mapping with its former keys under their current names, and warns of each.
// A key under both names is a problem; the current one is kept.
func (r *reader) currentKeys(n *node, renamed map[string]string) *node {
	if n.kind != mapping {
		return n
	}
	current := *n
	current.nodes = nil
	for _, child := range n.nodes {
		name, ok := renamed[child.name]
		switch {
		case !ok:
			current.nodes = append(current.nodes, child)
		case n.get(name) != nil:
			r.problemf(child.key, "%s is the former name of %s, and both are set; remove %s", child.name, name, child.name)
		default:
			r.warnf(child.key, "%s is now called %s; rename it, since the next release rejects the former name", child.name, name)
			current.nodes = append(current.nodes, child.withName(name, child.key))
		}
	}
	return &current
}
