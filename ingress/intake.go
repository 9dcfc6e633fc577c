package ingress

import (
	"cmp"
	"strconv"
	"time"

	"berth/routers"
)

// read takes in the body and finds the model that it is for.
func (x *proxyRequest) read() error {
	t := x.registry.table.Load()
	reader := bodyReader{maxBytes: t.config.HTTP.MaxBodyBytes, timeout: t.config.HTTP.BodyTimeout, budget: x.budget}
	b, err := reader.read(x.c.Writer, x.c.Request)
	if err != nil {
		return err
	}
	x.body, x.ready = b, time.Now()
	x.record.BodyRead, x.record.BodyBytes = x.ready, len(b.Bytes())
	var h *promptHasher
	if size := x.blockSize(t); size > 0 {
		h = newPromptHasher(size)
		defer h.done()
	}
	p, err := scanBody(x.c.Request.Header, b.Bytes(), h)
	if err != nil {
		return err
	}
	if err := x.resolve(t, p, h); err != nil || p.previous.absent() {
		return err
	}
	return x.bind(text(p.previous.of(b.Bytes())))
}

// blockSize is the size of the blocks in which the prompt is hashed while it is read; 0 if it need not be. The model is
// not known yet, nor its policy, but they seldom differ in this.
func (x *proxyRequest) blockSize(t *table) int {
	if t.blockBytes == 0 && x.telemetry.LogsDecisions() {
		return routers.DefaultPrefixOptions.BlockBytes
	}
	return t.blockBytes
}

// resolve finds the model and makes the payload. The body was scanned into h.
func (x *proxyRequest) resolve(t *table, p payload, h *promptHasher) error {
	adapter, err := x.find(t, p)
	if err != nil {
		return err
	}
	x.record.Model, x.record.Policy = x.model.config.ID, x.model.config.Router.Class
	if !keyOf(x.c).allows(x.model) {
		return &keyError{errKeyModel, "This API key may not use the model " + strconv.Quote(x.model.config.ID) + "; GET /v1/models lists those that it may."}
	}
	x.record.Metrics, x.record.Stream = x.model.metrics, p.stream
	x.payload = routers.Payload{
		RequestID: requestID(x.c),
		Stream:    p.stream,
		Model:     x.model.config.ID,
		Adapter:   adapter,
		Text:      p.text().of(x.body.Bytes()),
		SessionID: sessionID(t.config.Session, x.c.Request.Header, p, x.body.Bytes()),
	}
	x.record.Adapter, x.record.Session = adapter, x.payload.SessionID
	x.hash(p, h)
	if len(x.payload.Text) == 0 {
		x.withoutText()
	}
	return nil
}

// find finds the model, and the adapter of it if one is asked for. Where the replica calls what is asked for otherwise than
// the client does, that one value is replaced in the body.
func (x *proxyRequest) find(t *table, p payload) (adapter string, err error) {
	switch {
	case p.model != nil:
		name := string(p.model)
		if x.model = t.find(name); x.model == nil {
			x.model, adapter = t.adapted(name)
		}
		if x.model == nil {
			return "", unknownModel(name)
		}
		if served := cmp.Or(adapter, x.model.config.ServedName); name != served {
			x.body.replaceModel(p, served)
		}
	case len(t.models) == 1:
		x.model = t.models[0]
		if !p.modelAt.absent() {
			x.body.replaceModel(p, x.model.config.ServedName) // a null
		}
	default:
		return "", errModelRequired
	}
	return adapter, nil
}

// hash has the blocks of the prompt, if its policy or the decision log want them.
func (x *proxyRequest) hash(p payload, h *promptHasher) {
	prefixed, byPrefix := x.model.router.Policy().(routers.Prefixed)
	if !byPrefix && !x.telemetry.LogsDecisions() {
		return
	}
	size := routers.DefaultPrefixOptions.BlockBytes
	if byPrefix {
		size = prefixed.BlockSize()
	}
	if h == nil { // the log was not there yet
		h = newPromptHasher(size)
		defer h.done()
	}
	x.record.Blocks, x.record.PromptBytes = h.promptBlocks(p, x.body.Bytes(), x.payload.Model, x.payload.Adapter, size)
	x.record.BlockBytes = size
	if byPrefix {
		x.payload.Blocks = x.record.Blocks
	}
}

// withoutText counts a request that leaves the policy nothing to go by but
// load, and warns of the first one.
func (x *proxyRequest) withoutText() {
	x.model.metrics.CountNoText()
	x.model.warnText.Do(func() {
		x.log.Warn("a request has no messages, prompt or input to route by; such requests are ranked by load",
			"model", x.model.config.ID, "path", x.c.Request.URL.Path, "request_id", x.payload.RequestID)
	})
}
