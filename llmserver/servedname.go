package llmserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
)

const (
	maxModelsBody  = 1 << 20 // bytes of a list of models; a longer one is not evaluated
	maxListedNames = 10      // names that are kept and reported
)

// An unlistedModel is a served name that a replica's list of models lacks, and names that are in
// the list.
type unlistedModel struct {
	name   string
	listed []string
}

// UnlistedModel returns whether the replica's list of models lacked the served name when the
// replica was last checked, and at most 10 names of that list.
func (r *Replica) UnlistedModel() (listed []string, unlisted bool) {
	u := r.unlisted.Load()
	if u == nil {
		return nil, false
	}
	return u.listed, true
}

// checkServedName requests the replica's list of models and reports a served name that is not in
// it, once until list or name change. Without a usable list nothing is known. The check affects
// neither health nor circuit and takes no slot. Only probeLoop calls checkServedName, so a replica
// gets one such request at a time; it blocks for the endpoint's ProbeTimeout at most.
func (r *Replica) checkServedName(ctx context.Context) {
	e := r.Endpoint()
	ctx, stop := context.WithTimeout(ctx, e.ProbeTimeout)
	defer stop()
	models, err := r.listModels(ctx)
	if err != nil {
		return
	}
	if serves(models, e.ServedName) {
		r.unlisted.Store(nil)
		return
	}
	now := &unlistedModel{name: e.ServedName}
	for _, m := range models[:min(len(models), maxListedNames)] {
		now.listed = append(now.listed, m.ID)
	}
	before := r.unlisted.Swap(now)
	if before != nil && before.name == now.name && slices.Equal(before.listed, now.listed) {
		return
	}
	if r.events.ModelUnlisted != nil {
		r.events.ModelUnlisted(e, now.listed)
	}
}

// A listedModel is an element of a list of models.
type listedModel struct {
	ID      string `json:"id"`
	OwnedBy string `json:"owned_by"`
}

var errNoModelList = errors.New("no list of models")

// listModels requests GET /v1/models.
func (r *Replica) listModels(ctx context.Context) ([]listedModel, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	resp, report, err := r.backend.Do(req, Token{})
	r.applyReport(report)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxModelsBody))
	if err != nil {
		return nil, err
	}
	var list struct {
		Data *[]listedModel `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || list.Data == nil {
		return nil, errNoModelList
	}
	return *list.Data, nil
}

// serves reports whether an engine with this list of models serves a model by the given name.
// Ollama also finds a model by its name without the tag "latest". A llama.cpp server with one model
// accepts any name.
func serves(models []listedModel, name string) bool {
	if len(models) == 1 && models[0].OwnedBy == "llamacpp" {
		return true
	}
	return slices.ContainsFunc(models, func(m listedModel) bool { return m.ID == name || m.ID == name+":latest" })
}
