package agent

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"berth/llmserver"
)

// The header fields of the slot protocol. None of them reaches a client.
const (
	headerToken    = "X-Reserved-Slot-Token"
	headerRefused  = "X-Slot-Refused" // on what was not let in: one of the reasons below
	headerOngoing  = "X-Num-Ongoing-Requests"
	headerInstance = "X-Slot-Instance"
	headerSeq      = "X-Slot-Seq"
	headerSecret   = "X-Slot-Secret"
	headerHolder   = "X-Slot-Holder" // of a call: names the ingress, which is told in turn
	headerOwn      = "X-Slot-Own"    // how much of what is ongoing it holds itself
)

// Why a request was not let in. The engine has seen nothing of it.
const (
	refusedToken    = "unknown_token"
	refusedFull     = "full"
	refusedDraining = "draining"
	refusedEngine   = "engine_down" // no connection to the engine could be made
)

// reserveRequest is the body of POST /internal/slots.
type reserveRequest struct {
	Token  llmserver.Token `json:"token"`
	LeaseS *float64        `json:"lease_s"` // null: the default
	WaitMS int64           `json:"wait_ms"`
}

// lease is the time asked for, clamped to what is allowed.
func (r *reserveRequest) lease() time.Duration {
	if r.LeaseS == nil {
		return DefaultLease
	}
	return time.Duration(min(*r.LeaseS, MaxLease.Seconds()) * float64(time.Second))
}

// slotReport is the answer of every call to /internal/slots.
type slotReport struct {
	Accepted *bool  `json:"accepted,omitempty"` // of a reservation
	Ongoing  int    `json:"num_ongoing_requests"`
	Limit    int    `json:"max_ongoing_requests"`
	Draining bool   `json:"draining"`
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
	Own      int    `json:"num_own_requests,omitempty"` // the caller's; 0 if it does not name itself
	Reserved *int   `json:"reserved,omitempty"`         // of a reading
	Running  *int   `json:"running,omitempty"`
}

func encodeReport(r llmserver.Report) slotReport {
	return slotReport{Ongoing: r.Ongoing, Limit: r.Limit, Draining: r.Draining, Instance: r.Instance, Seq: r.Seq, Own: r.Own}
}

func (s slotReport) toReport() llmserver.Report {
	return llmserver.Report{Ongoing: s.Ongoing, Limit: s.Limit, Draining: s.Draining, Instance: s.Instance, Seq: s.Seq, Own: s.Own}
}

// setReport puts a report in the header of an answer.
func setReportHeader(h http.Header, r llmserver.Report) {
	h.Set(headerOngoing, strconv.Itoa(r.Ongoing))
	h.Set(headerInstance, r.Instance)
	h.Set(headerSeq, strconv.FormatUint(r.Seq, 10))
	h.Set(headerOwn, strconv.Itoa(r.Own))
}

// readReport takes a report from the header of an answer; false if it has
// none. A header does not tell the capacity: Limit is 0.
func parseReportHeader(h http.Header) (llmserver.Report, bool) {
	ongoing, err := strconv.Atoi(h.Get(headerOngoing))
	seq, err2 := strconv.ParseUint(h.Get(headerSeq), 10, 64)
	instance := h.Get(headerInstance)
	own, err3 := strconv.Atoi(h.Get(headerOwn))
	if err != nil || err2 != nil || err3 != nil || instance == "" || ongoing < 0 || own < 0 {
		return llmserver.Report{}, false
	}
	return llmserver.Report{Ongoing: ongoing, Instance: instance, Seq: seq, Own: own}, true
}

// writeError answers with OpenAI's error object, all four keys, error first.
func writeError(w http.ResponseWriter, status int, kind, code, message string) {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	writeJSON(w, status, map[string]object{"error": {message, kind, nil, code}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer does not encode: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
