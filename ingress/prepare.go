package ingress

import (
	"cmp"
	"strconv"
	"time"

	"berth/internal/body"
	"berth/internal/openai"
	"berth/routers"
)

// prepare reads the body of the request, scans it, resolves its model and fills in the routing
// payload. It blocks while the client uploads and, for a request that continues a stored response,
// while the replicas are asked for that response.
func (x *proxyRequest) prepare() error {
	t := x.registry.table.Load()
	b, err := body.Read(x.c.Writer, x.c.Request, &body.Options{
		MaxBytes:    t.config.HTTP.MaxBodyBytes,
		IdleTimeout: t.config.HTTP.BodyTimeout,
		Budget:      x.budget,
		CheckHeader: openai.CheckHeader,
	})
	if err != nil {
		return err
	}
	x.body, x.ready = b, time.Now()
	x.uploaded, x.size = x.ready, len(b.Bytes())
	var h *openai.PromptHasher
	if size := x.expectedBlockSize(t); size > 0 {
		h = openai.NewPromptHasher(size)
		defer h.Release()
	}
	f, err := openai.ScanBody(x.c.Request.Header, b.Bytes(), h)
	if err != nil {
		return err
	}
	if err := x.resolvePayload(t, f, h); err != nil || f.PreviousResponseID.Absent() {
		return err
	}
	x.payload.PinnedTo, err = x.lookups.pin(x.c.Request, f.PreviousResponseID.Text(b.Bytes()), x.model)
	return err
}

// expectedBlockSize returns the block size in which the prompt is hashed during the scan; 0 for
// none. The model and its policy are not known yet, but nearly all agree on the size.
func (x *proxyRequest) expectedBlockSize(t *table) int {
	if t.blockBytes == 0 && x.decisionLog.veil.Load() != nil {
		return routers.DefaultPrefixOptions.BlockBytes
	}
	return t.blockBytes
}

// resolvePayload resolves the model, checks the key's right to it and fills in the routing payload.
// The body was scanned into h, which may be nil.
func (x *proxyRequest) resolvePayload(t *table, f openai.Fields, h *openai.PromptHasher) error {
	adapter, err := x.resolveModel(t, f)
	if err != nil {
		return err
	}
	if !keyOf(x.c).allows(x.model.config.ID) {
		return &keyError{errModelNotAllowed, "This API key may not use the model " + strconv.Quote(x.model.config.ID) + "; GET /v1/models lists those that it may."}
	}
	x.visit.model, x.visit.metrics = x.model.config.ID, x.model.metrics
	x.stream = f.Stream
	x.payload = routers.Payload{
		RequestID: requestID(x.c),
		Stream:    f.Stream,
		Model:     x.model.config.ID,
		Adapter:   adapter,
		Text:      f.RoutingText().Of(x.body.Bytes()),
		SessionID: sessionID(t.config.Session, x.c.Request.Header, f, x.body.Bytes()),
	}
	x.hashPrompt(f, h)
	if len(x.payload.Text) == 0 {
		x.reportMissingText()
	}
	return nil
}

// resolveModel sets the model of the request and returns the adapter that the request names, if
// any. If the replica knows the model by another name than the client, the body is sent with that
// name in place of the client's.
func (x *proxyRequest) resolveModel(t *table, f openai.Fields) (adapter string, err error) {
	switch {
	case f.Model != nil:
		name := string(f.Model)
		if x.model = t.findModel(name); x.model == nil {
			x.model, adapter = t.resolveAdapter(name)
		}
		if x.model == nil {
			return "", unknownModel(name)
		}
		if served := cmp.Or(adapter, x.model.config.ServedName); name != served {
			x.replaceModel(f, served)
		}
	case len(t.models) == 1:
		x.model = t.models[0]
		if !f.ModelAt.Absent() { // a null
			x.replaceModel(f, x.model.config.ServedName)
		}
	default:
		return "", errModelRequired
	}
	return adapter, nil
}

// replaceModel makes all attempts send name as the model. No other byte of the body changes.
func (x *proxyRequest) replaceModel(f openai.Fields, name string) {
	x.body.Replace(f.ModelAt.Start, f.ModelAt.End, f.EncodeModel(name))
}

// hashPrompt sets the block hashes of the prompt if the model's policy or the decision log needs
// them.
func (x *proxyRequest) hashPrompt(f openai.Fields, h *openai.PromptHasher) {
	prefixed, byPrefix := x.model.router.Policy().(routers.BlockSizer)
	if !byPrefix && x.decisionLog.veil.Load() == nil {
		return
	}
	size := routers.DefaultPrefixOptions.BlockBytes
	if byPrefix {
		size = prefixed.BlockSize()
	}
	if h == nil { // the decision log was opened after the scan
		h = openai.NewPromptHasher(size)
		defer h.Release()
	}
	x.blocks, x.promptBytes = h.Blocks(f, x.body.Bytes(), x.payload.Model, x.payload.Adapter, size)
	x.blockBytes = size
	if byPrefix {
		x.payload.Blocks = x.blocks
	}
}

// reportMissingText counts a request without routing text, which policies can rank by load only,
// and logs a warning for the first one of each model.
func (x *proxyRequest) reportMissingText() {
	x.model.metrics.noText.WithLabelValues().Inc()
	x.model.warnText.Do(func() {
		x.log.Warn("a request has no messages, prompt or input to route by; such requests are ranked by load",
			"model", x.model.config.ID, "path", x.c.Request.URL.Path, "request_id", x.payload.RequestID)
	})
}
