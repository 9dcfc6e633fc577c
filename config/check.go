package config

// checkFile reports problems between the parts of a file, after all have been read.
func (r *reader) checkFile(root *node) {
	if root.kind != mapping {
		return
	}
	r.checkModels(root)
	r.checkBodies(root.get("http"))
	r.checkListeners(root)
	r.checkKeyModels()
}

func (r *reader) checkModels(root *node) {
	models, applications := root.get("llm_configs"), root.get("applications")
	switch {
	case models == nil && applications == nil:
		r.problemf(root.at, "llm_configs is missing; list at least one model in it")
	case models != nil && applications != nil:
		r.problemf(applications.key, "llm_configs and applications are both set; keep one of them")
	case len(r.config.Models) > 0 || len(r.problems) > 0:
		// there is a model, or problems are reported
	case models != nil:
		r.problemf(models.at, "llm_configs is empty; list at least one model")
	default:
		r.problemf(applications.at, "no application has models under args.llm_configs; list at least one")
	}
}

// decisionLog reads the settings of the decision log.
func (r *reader) decisionLog(n *node) {
	r.object(r.decisionLogConfig(&r.config.DecisionLog))(n)
	if n.kind == mapping && n.get("path") == nil {
		r.problemf(n.at, "decision_log has no path; set the file to append to")
	}
}

func (r *reader) checkBodies(http *node) {
	h := r.config.HTTP
	if most := r.checks.MostBuffered; most > 0 && h.MaxBufferedBytes > most {
		r.warnf(http.get("max_buffered_bytes").at, "max_buffered_bytes (%d) may exceed the memory of this machine or container; "+
			"set at most %d, a quarter of it, or remove the key to use that", h.MaxBufferedBytes, most)
	}
	if h.MaxBufferedBytes == 0 || h.MaxBufferedBytes >= h.MaxBodyBytes {
		return
	}
	culprit := http.get("max_buffered_bytes")
	if culprit == nil {
		culprit = http.get("max_body_bytes")
	}
	r.problemf(culprit.at, "max_buffered_bytes (%d) must be at least max_body_bytes (%d), or the largest bodies are always rejected",
		h.MaxBufferedBytes, h.MaxBodyBytes)
}

func (r *reader) checkListeners(root *node) {
	options := root.get("http_options")
	address := root.get("http").get("address")
	if address != nil && (options.get("host") != nil || options.get("port") != nil) {
		r.problemf(options.key, "http_options and http.address both set the listen address; keep one of them")
	}
	if !addressesConflict(r.config.HTTP.Address, r.config.Admin.Address) {
		return
	}
	culprit := root
	for _, n := range []*node{root.get("admin").get("address"), address, options} {
		if n != nil {
			culprit = n
			break
		}
	}
	r.problemf(culprit.at, "the listeners for clients (%s) and admin (%s) conflict; change one of the ports",
		r.config.HTTP.Address, r.config.Admin.Address)
}
