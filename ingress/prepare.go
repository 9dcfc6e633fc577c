package ingress

import (
	"cmp"
	"strconv"
	"time"

	"berth/internal/body"
	"berth/internal/openai"
	"berth/routers"
)

// prepare reads and scans the request body, resolves the model and fills in the routing payload.
//
// It blocks during the upload and, for a request that continues a stored response, during the
// lookup of that response's replica. The order is fixed: limits and Content-Type are checked before
// the body is read, and the key's right to the model before any lookup. After an error x.body may
// be nil, and no slot has been reserved.
func (x *proxyRequest) prepare() error {
	// One table for all of prepare: a reload in between must not mix two configurations.
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
	// From here on releaseBody owns the body, also on the error paths below.
	x.body, x.ready = b, time.Now()
	x.record.BodyRead, x.record.BodyBytes = x.ready, len(b.Bytes())
	// Prompts are hashed during the scan, in the same pass over the bytes.
	var h *openai.PromptHasher
	if size := x.expectedBlockSize(t); size > 0 {
		h = openai.NewPromptHasher(size)
		defer h.Release()
	}
	// The scan reads JSON or a form, by Content-Type, and rejects bodies that replicas could not
	// parse.
	f, err := openai.ScanBody(x.c.Request.Header, b.Bytes(), h)
	if err != nil {
		return err
	}
	// Only a continuation of a stored response needs a particular replica, the one with that
	// response.
	if err := x.resolvePayload(t, f, h); err != nil || f.PreviousResponseID.Absent() {
		return err
	}
	x.payload.PinnedTo, err = x.lookups.pin(x.c.Request, f.PreviousResponseID.Text(b.Bytes()), x.model)
	return err
}

// expectedBlockSize returns the block size in which the prompt is hashed during the scan; 0 for
// none. The model and its policy are unknown before the scan, but nearly all policies agree on the
// size. hashPrompt corrects a wrong guess.
func (x *proxyRequest) expectedBlockSize(t *table) int {
	if t.blockBytes == 0 && x.telemetry.LogsDecisions() {
		// Hashes for the decision log alone have the default size.
		return routers.DefaultPrefixOptions.BlockBytes
	}
	return t.blockBytes
}

// resolvePayload resolves the model, checks the API key's right to use the model and fills in the
// routing payload. f and h are the results of the scan; h is nil if no hashes were expected. The
// payload's text aliases the body and must not be used after releaseBody.
func (x *proxyRequest) resolvePayload(t *table, f openai.Fields, h *openai.PromptHasher) error {
	adapter, err := x.resolveModel(t, f)
	if err != nil {
		return err
	}
	// Set before the check of the key, so that logs of rejected requests name the model.
	x.record.Model, x.record.Policy = x.model.config.ID, x.model.config.Router.Class
	if !keyOf(x.c).allows(x.model.config.ID) {
		return &keyError{errModelNotAllowed, "This API key may not use the model " + strconv.Quote(x.model.config.ID) + "; GET /v1/models lists those that it may."}
	}
	// From here on the request counts in the metrics of its model.
	x.record.Metrics, x.record.Stream = x.model.metrics, f.Stream
	x.payload = routers.Payload{
		RequestID: requestID(x.c),
		Stream:    f.Stream,
		Model:     x.model.config.ID,
		Adapter:   adapter,
		Text:      f.RoutingText().Of(x.body.Bytes()),
		SessionID: sessionID(t.config.Session, x.c.Request.Header, f, x.body.Bytes()),
		Request:   x,
	}
	x.stores = f.Stores(x.c.Request.URL.Path, x.body.Bytes())
	x.record.Adapter, x.record.Session = adapter, x.payload.SessionID
	x.hashPrompt(f, h)
	// Not an error: images and token IDs have no text, and engines decide on the rest.
	if len(x.payload.Text) == 0 {
		x.reportMissingText()
	}
	return nil
}

// resolveModel sets the model of the request and returns the requested adapter, if any. If the
// replicas serve the model under another name than the client's, that name is sent in the body. A
// request without a model gets the only configured one; with several models the error is
// errModelRequired.
func (x *proxyRequest) resolveModel(t *table, f openai.Fields) (adapter string, err error) {
	switch {
	case f.Model != nil:
		// IDs and aliases take precedence over adapters, whose names contain a colon.
		name := string(f.Model)
		if x.model = t.findModel(name); x.model == nil {
			x.model, adapter = t.resolveAdapter(name)
		}
		if x.model == nil {
			return "", unknownModel(name)
		}
		// An adapter goes to the engine without the name of the base model.
		if served := cmp.Or(adapter, x.model.config.ServedName); name != served {
			x.replaceModel(f, served)
		}
	// Clients of a server with a single model may leave the name out.
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

// replaceModel makes all attempts send name as the model. No other byte of the body changes, and f
// keeps referring to the original bytes.
func (x *proxyRequest) replaceModel(f openai.Fields, name string) {
	x.body.Replace(f.ModelAt.Start, f.ModelAt.End, f.EncodeModel(name))
}

// hashPrompt sets the block hashes of the prompt if the model's policy or the decision log needs
// them. They stay in the record after the body has been released, because they do not alias it.
func (x *proxyRequest) hashPrompt(f openai.Fields, h *openai.PromptHasher) {
	// Policies that rank by prefix choose the block size; for others only the decision log needs
	// hashes.
	prefixed, byPrefix := x.model.router.Policy().(routers.BlockSizer)
	if !byPrefix && !x.telemetry.LogsDecisions() {
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
	// Blocks reuses the hashes of the scan unless size differs, and hashes the prompt again if so.
	x.record.Blocks, x.record.PromptBytes = h.Blocks(f, x.body.Bytes(), x.payload.Model, x.payload.Adapter, size)
	x.record.BlockBytes = size
	if byPrefix {
		x.payload.Blocks = x.record.Blocks
	}
}

// reportMissingText counts a request without routing text, which policies rank by load alone, and
// logs a warning once per model.
func (x *proxyRequest) reportMissingText() {
	x.model.metrics.CountNoText()
	x.model.warnText.Do(func() {
		x.log.Warn("a request has no messages, prompt or input to route by; such requests are ranked by load",
			"model", x.model.config.ID, "path", x.c.Request.URL.Path, "request_id", x.payload.RequestID)
	})
}
