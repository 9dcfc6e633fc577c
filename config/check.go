package config

// checkFile reports what is wrong with a file as a whole, after its parts have been read.
func (r *reader) checkFile(root *node) {
	if root.kind != mapping {
		return
	}
	r.checkModels(root)
	r.checkBodies(root.get("http"))
	r.checkListeners(root)
	r.checkKeys()
}

func (r *reader) checkModels(root *node) {
	models, applications := root.get("llm_configs"), root.get("applications")
	switch {
	case models == nil && applications == nil:
		r.fail(root.at, "llm_configs is missing; list at least one model there")
	case models != nil && applications != nil:
		r.fail(applications.key, "llm_configs and applications both list models; keep one of them")
	case len(r.config.Models) > 0 || len(r.problems) > 0:
		// served, or reported already
	case models != nil:
		r.fail(models.at, "llm_configs is empty; list at least one model")
	default:
		r.fail(applications.at, "no application has models under args.llm_configs; list at least one")
	}
}

// decisionLog reads where the decision log is written.
func (r *reader) decisionLog(n *node) {
	r.object(r.decisionLogConfig(&r.config.DecisionLog))(n)
	if n.kind == mapping && n.get("path") == nil {
		r.fail(n.at, "decision_log needs a path, the file to write to")
	}
}

func (r *reader) checkBodies(http *node) {
	h := r.config.HTTP
	if most := r.checks.MostBuffered; most > 0 && h.MaxBufferedBytes > most {
		r.warn(http.get("max_buffered_bytes").at, "max_buffered_bytes (%d) is more than this machine or container has memory for; "+
			"at most %d, a quarter, leaves room for the rest, and without the key that is taken", h.MaxBufferedBytes, most)
	}
	if h.MaxBufferedBytes == 0 || h.MaxBufferedBytes >= h.MaxBodyBytes {
		return
	}
	culprit := http.get("max_buffered_bytes")
	if culprit == nil {
		culprit = http.get("max_body_bytes")
	}
	r.fail(culprit.at, "max_buffered_bytes (%d) must be at least max_body_bytes (%d), or the largest bodies never fit",
		h.MaxBufferedBytes, h.MaxBodyBytes)
}

func (r *reader) checkListeners(root *node) {
	options := root.get("http_options")
	address := root.get("http").get("address")
	if address != nil && (options.get("host") != nil || options.get("port") != nil) {
		r.fail(options.key, "http_options and http.address both say where to listen; keep one of them")
	}
	if !collide(r.config.HTTP.Address, r.config.Admin.Address) {
		return
	}
	culprit := root
	for _, n := range []*node{root.get("admin").get("address"), address, options} {
		if n != nil {
			culprit = n
			break
		}
	}
	r.fail(culprit.at, "clients and admin cannot both listen on %s and %s; change the port of one",
		r.config.HTTP.Address, r.config.Admin.Address)
}
