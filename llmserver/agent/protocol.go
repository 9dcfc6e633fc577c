package agent

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"berth/internal/openai"
	"berth/llmserver"
)

// Header fields of the slot protocol. The ingress passes none of them to a client.
const (
	headerToken    = "X-Reserved-Slot-Token"
	headerRefused  = "X-Slot-Refused" // on refusals: one of the reasons below
	headerOngoing  = "X-Num-Ongoing-Requests"
	headerInstance = "X-Slot-Instance"
	headerSeq      = "X-Slot-Seq"
	headerSecret   = "X-Slot-Secret"
	headerHolder   = "X-Slot-Holder" // of a call: the name of the ingress
	headerOwn      = "X-Slot-Own"    // the part of the ongoing requests that the caller holds
)

// Values of X-Slot-Refused. The engine has seen nothing of a refused request.
const (
	refusedToken    = "unknown_token"
	refusedFull     = "full"
	refusedDraining = "draining"
	refusedEngine   = "engine_down" // the agent cannot connect to the engine
)

// A reserveRequest is the body of POST /internal/slots.
type reserveRequest struct {
	Token  llmserver.Token `json:"token"`
	LeaseS *float64        `json:"lease_s"` // null: the default
	WaitMS int64           `json:"wait_ms"`
}

// lease returns the requested lease, clamped to MaxLease.
func (r *reserveRequest) lease() time.Duration {
	if r.LeaseS == nil {
		return DefaultLease
	}
	return time.Duration(min(*r.LeaseS, MaxLease.Seconds()) * float64(time.Second))
}

// A slotReport is the body of every response of /internal/slots.
type slotReport struct {
	Accepted *bool  `json:"accepted,omitempty"` // in reply to POST
	Ongoing  int    `json:"num_ongoing_requests"`
	Limit    int    `json:"max_ongoing_requests"`
	Draining bool   `json:"draining"`
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
	Own      int    `json:"num_own_requests,omitempty"` // of the caller; 0 without X-Slot-Holder
	Reserved *int   `json:"reserved,omitempty"`         // in reply to GET
	Running  *int   `json:"running,omitempty"`
}

func encodeReport(r llmserver.Report) slotReport {
	return slotReport{Ongoing: r.Ongoing, Limit: r.Limit, Draining: r.Draining, Instance: r.Instance, Seq: r.Seq, Own: r.Own}
}

func (s slotReport) toReport() llmserver.Report {
	return llmserver.Report{Ongoing: s.Ongoing, Limit: s.Limit, Draining: s.Draining, Instance: s.Instance, Seq: s.Seq, Own: s.Own}
}

// setReportHeader adds a report to the header of a response.
func setReportHeader(h http.Header, r llmserver.Report) {
	h.Set(headerOngoing, strconv.Itoa(r.Ongoing))
	h.Set(headerInstance, r.Instance)
	h.Set(headerSeq, strconv.FormatUint(r.Seq, 10))
	h.Set(headerOwn, strconv.Itoa(r.Own))
}

// parseReportHeader returns the report in the header of a response; ok is false if there is no
// valid one. Headers do not carry the capacity: Limit is 0.
func parseReportHeader(h http.Header) (report llmserver.Report, ok bool) {
	ongoing, err := strconv.Atoi(h.Get(headerOngoing))
	seq, err2 := strconv.ParseUint(h.Get(headerSeq), 10, 64)
	instance := h.Get(headerInstance)
	own, err3 := strconv.Atoi(h.Get(headerOwn))
	if err != nil || err2 != nil || err3 != nil || instance == "" || ongoing < 0 || own < 0 {
		return llmserver.Report{}, false
	}
	return llmserver.Report{Ongoing: ongoing, Instance: instance, Seq: seq, Own: own}, true
}

// writeError writes a response with OpenAI's error object as body. errorType is one of openai's
// Type constants.
func writeError(w http.ResponseWriter, status int, errorType, code, message string) {
	writeBody(w, status, openai.Error{Status: status, Type: errorType, Code: code, Message: message}.JSON())
}

// writeJSON writes a response with v as JSON body.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a response does not encode: " + err.Error())
	}
	writeBody(w, status, body)
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
