package scenes

import (
	"fmt"
	"net/http"
	"slices"
)

// A Fault is what goes wrong at an engine. Unless stated otherwise, /health responds with 200
// meanwhile and responses in progress are completed.
type Fault string

// The faults of the scenes.
const (
	ServerError Fault = "500 at once"
	NotFound    Fault = "404 for the model"
	Unavailable Fault = "503"
	Hang        Fault = "hang before the first byte" // requests are held, and processed when the fault ends
	Slow        Fault = "10 × slower"
	MidStream   Fault = "breaks mid-stream"      // every response ends after half of it
	Garbage     Fault = "garbage (invalid HTTP)" // in place of a response
	Refused     Fault = "connection refused"     // also for /health; idle connections are closed
	Killed      Fault = "killed and back"        // SIGKILL; a new process at the same address ends the fault
	Stopped     Fault = "wedged by SIGSTOP"      // SIGCONT ends the fault
)

// All has the faults of the scenes in the order of the table.
var All = []Fault{ServerError, NotFound, Unavailable, Hang, Slow, MidStream, Garbage, Refused, Killed, Stopped}

// Faults that are part of no scene.
const (
	Break     Fault = "connection closed before the first byte"
	Loading   Fault = "503 of llama.cpp during startup"
	QueueFull Fault = "503 of vLLM with a full queue"
)

// needsProcess reports whether the fault is one of a process.
func (f Fault) needsProcess() bool { return f == Killed || f == Stopped }

// silent reports whether an engine with the fault sends nothing at all, so that only time can
// reveal it.
func (f Fault) silent() bool { return f == Hang || f == Stopped }

// marker returns the text of a prompt that makes every engine fail in this way for that request.
func (f Fault) marker() string { return fmt.Sprintf("[fault %d]", slices.Index(markable, f)) }

// markable lists the faults that a prompt can cause.
var markable = []Fault{ServerError, Break}

// errorResponses holds the responses of faults that are only a status and a body.
var errorResponses = map[Fault]struct {
	status int
	body   string
}{
	ServerError: {http.StatusInternalServerError, `{"error":{"message":"CUDA error: an illegal memory access was encountered","type":"InternalServerError","param":null,"code":500}}`},
	NotFound:    {http.StatusNotFound, `{"error":{"message":"The model ` + "`demo`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`},
	Unavailable: {http.StatusServiceUnavailable, `{"error":{"message":"Service Unavailable","type":"ServiceUnavailableError","param":null,"code":503}}`},
	Loading:     {http.StatusServiceUnavailable, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`},
	QueueFull:   {http.StatusServiceUnavailable, `{"error":{"message":"The request was rejected: max_num_queued_reqs is reached","type":"QueueOverflowError","param":null,"code":503}}`},
}

// ErrorBody returns the body of an engine's response with the fault, or "" if the fault is not an
// HTTP error.
func (f Fault) ErrorBody() string { return errorResponses[f].body }
