package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// badInput is an invalid request and the wanted error. By default it is a POST to
// /v1/chat/completions.
type badInput struct {
	name, call, body string
	headers          []string // names and values in turn
	status           int
	code, param      string
	message          string
}

const (
	completions = "POST /v1/completions"
	noSuchPath  = "This server has no such path; see GET /v1/models and POST /v1/chat/completions."
	closedPath  = "This server does not forward requests to this path; if the engines serve it, ask the operator to add it to extra_paths."
	notThisWay  = "This path does not support this method; use one of those in the Allow header."
	forOthers   = "This path manages the engines; send the request to the admin listener, with ?model= if there are several models."
	namesNone   = "The request must name a 'model' because this server has several; GET /v1/models lists them."
	isNoObject  = "The request body must be a JSON object."
	isNoString  = "The 'model' in the request body must be a string."
	hasTwo      = "The request body has more than one 'model'; send only one."
	tooDeep     = "The request body is nested deeper than 1024 levels; reduce the nesting."
	tooLarge    = "The request body is too large: the limit is 1048576 bytes; send less."
	wrongType   = "The Content-Type of the request must be application/json, or multipart/form-data where files are sent."
	compressed  = "The request body must be sent without a Content-Encoding."
	noBoundary  = "The Content-Type of the form has no valid boundary; send it with the boundary of the form."
	noWholeForm = "The request body is not a whole multipart form; send all parts and the closing boundary."
	badTimeout  = "The x-request-timeout-seconds header must be one positive number of seconds."
)

func notJSON(what string) string {
	return "The request body is not valid JSON: " + what + "; correct the body."
}

func noModel(quoted string) string {
	return "The model " + quoted + " does not exist; GET /v1/models lists those that do."
}

// badBodies are invalid as JSON or in their model.
var badBodies = []badInput{
	{"an empty body", "", "", nil, 400, "empty_body", "", "The request body is empty; send a JSON object."},
	{"white space only", "", " \r\n\t", nil, 400, "empty_body", "", "The request body is empty; send a JSON object."},
	{"a list", "", `["model","m"]`, nil, 400, "invalid_json", "", isNoObject},
	{"a string", "", `"model"`, nil, 400, "invalid_json", "", isNoObject},
	{"a number", completions, `7`, nil, 400, "invalid_json", "", isNoObject},
	{"null", completions, `null`, nil, 400, "invalid_json", "", isNoObject},
	{"no JSON at all", "", `model=m`, nil, 400, "invalid_json", "", notJSON("unexpected character 'm' at byte 0")},
	{"cut within an object", "", `{"model":"m"`, nil, 400, "invalid_json", "", notJSON("unexpected end at byte 12")},
	{"cut within a string", "", `{"model":"m`, nil, 400, "invalid_json", "", notJSON("unexpected end at byte 11")},
	{"more behind the object", "", `{"model":"m"}}`, nil, 400, "invalid_json", "", notJSON("unexpected character '}' after the JSON value at byte 13")},
	{"two objects", "", `{"model":"m"}{}`, nil, 400, "invalid_json", "", notJSON("unexpected character '{' after the JSON value at byte 13")},
	{"a NUL behind the object", "", "{\"model\":\"m\"}\x00", nil, 400, "invalid_json", "", notJSON("unexpected character '\\x00' after the JSON value at byte 13")},
	{"a comma too many", "", `{"model":"m",}`, nil, 400, "invalid_json", "", notJSON("unexpected character '}' before a member name at byte 13")},
	{"a comma too few", "", `{"model":"m" "n":1}`, nil, 400, "invalid_json", "", notJSON(`unexpected character '"' at byte 13`)},
	{"single quotes", "", `{'model':'m'}`, nil, 400, "invalid_json", "", notJSON(`unexpected character '\'' before a member name at byte 1`)},
	{"a bare name", "", `{model:"m"}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'm' before a member name at byte 1")},
	{"a comment", "", `{/*x*/"model":"m"}`, nil, 400, "invalid_json", "", notJSON("unexpected character '/' before a member name at byte 1")},
	{"NaN", "", `{"temperature":NaN}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'N' at byte 15")},
	{"minus infinity", "", `{"temperature":-Infinity}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'I' at byte 16")},
	{"True", "", `{"stream":True}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'T' at byte 10")},
	{"a leading zero", "", `{"n":01}`, nil, 400, "invalid_json", "", notJSON("unexpected character '1' at byte 6")},
	{"a plus", "", `{"n":+1}`, nil, 400, "invalid_json", "", notJSON("unexpected character '+' at byte 5")},
	{"a leading point", "", `{"n":.5}`, nil, 400, "invalid_json", "", notJSON("unexpected character '.' at byte 5")},
	{"a trailing point", "", `{"n":5.}`, nil, 400, "invalid_json", "", notJSON("unexpected character '}' in a number at byte 7")},
	{"an empty exponent", "", `{"n":5e}`, nil, 400, "invalid_json", "", notJSON("unexpected character '}' in a number at byte 7")},
	{"a hexadecimal number", "", `{"n":0x10}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'x' at byte 6")},
	{"an unknown escape", "", `{"n":"\x41"}`, nil, 400, "invalid_json", "", notJSON("unexpected character 'x' in an escape sequence at byte 7")},
	{"half an escape", "", `{"n":"\u12"}`, nil, 400, "invalid_json", "", notJSON(`unexpected character '"' in an escape sequence at byte 10`)},
	{"a line end in a string", "", "{\"n\":\"a\nb\"}", nil, 400, "invalid_json", "", notJSON(`unexpected character '\n' in a string at byte 7`)},
	{"a NUL in a string", "", "{\"n\":\"\x00\"}", nil, 400, "invalid_json", "", notJSON(`unexpected character '\x00' in a string at byte 6`)},
	{"a byte order mark", "", "\xef\xbb\xbf{}", nil, 400, "invalid_json", "", notJSON(`unexpected character '\ufeff' at byte 0`)},
	{"UTF-16", "", "\xff\xfe{\x00}\x00", nil, 400, "invalid_json", "", notJSON("unexpected byte 0xff at byte 0")},
	{"invalid UTF-8 beside a string", "", "{\"n\":\xc3\x28}", nil, 400, "invalid_json", "", notJSON("unexpected byte 0xc3 at byte 5")},
	{"lists nested too deep", completions, `{"a":` + strings.Repeat("[", 20000), nil, 400, "invalid_json", "", tooDeep},
	{"objects nested too deep", completions, strings.Repeat(`{"a":`, 1025), nil, 400, "invalid_json", "", tooDeep},

	{"no model", "", `{"prompt":"x"}`, nil, 400, "model_required", "model", namesNone},
	{"no model at the top", "", `{"x":{"model":"m"}}`, nil, 400, "model_required", "model", namesNone},
	{"a null model", "", `{"model":null}`, nil, 400, "model_required", "model", namesNone},
	{"a model that is a number", "", `{"model":5}`, nil, 400, "invalid_model", "model", isNoString},
	{"a model that is a list", "", `{"model":["m"]}`, nil, 400, "invalid_model", "model", isNoString},
	{"a model that is an object", "", `{"model":{"id":"m"}}`, nil, 400, "invalid_model", "model", isNoString},
	{"a model that is a truth", "", `{"model":true}`, nil, 400, "invalid_model", "model", isNoString},
	{"two models", "", `{"model":"m","model":"m"}`, nil, 400, "invalid_model", "model", hasTwo},
	{"two models, one escaped", "", `{"model":"m","\u006dodel":"n"}`, nil, 400, "invalid_model", "model", hasTwo},
	{"an unknown model", "", `{"model":"gpt-4"}`, nil, 404, "model_not_found", "model", noModel(`"gpt-4"`)},
	{"an empty model", "", `{"model":""}`, nil, 404, "model_not_found", "model", noModel(`""`)},
	{"another case", "", `{"model":"M"}`, nil, 404, "model_not_found", "model", noModel(`"M"`)},
	{"white space around it", "", `{"model":" m"}`, nil, 404, "model_not_found", "model", noModel(`" m"`)},
	{"an adapter of no model", "", `{"model":"x:a"}`, nil, 404, "model_not_found", "model", noModel(`"x:a"`)},
	{"an adapter without a name", "", `{"model":"m:"}`, nil, 404, "model_not_found", "model", noModel(`"m:"`)},
	{"line ends in its name", "", `{"model":"a\r\nSet-Cookie: x"}`, nil, 404, "model_not_found", "model", noModel(`"a\r\nSet-Cookie: x"`)},
	{"an endless name", "", `{"model":"` + strings.Repeat("x", 1<<19) + `"}`, nil, 404, "model_not_found", "model", noModel(`"` + strings.Repeat("x", 200) + `…"`)},
}

// badHeads are invalid in path, method or header fields.
var badHeads = []badInput{
	{"the root", "GET /", "", nil, 404, "unknown_url", "", noSuchPath},
	{"an unknown path", "GET /v2/models", "", nil, 404, "unknown_url", "", noSuchPath},
	{"an unknown path below the version", "GET /v1/nothing", "", nil, 404, "unknown_url", "", noSuchPath},
	{"an unknown path to post to", "POST /chat", "{}", nil, 404, "unknown_url", "", noSuchPath},
	{"one below the version without a model", "POST /v1/nothing", "{}", nil, 404, "unknown_url", "", closedPath},
	{"upper case", "POST /V1/CHAT/COMPLETIONS", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"a slash at the end", "POST /v1/chat/completions/", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"dots", "POST /v1/../v1/completions", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"one dot", "POST /v1/./completions", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"escaped dots", "POST /v1/%2e%2e/internal/x", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"dots behind escaped slashes", "POST /v1/x%2f..%2f..%2fsleep", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"two slashes", "POST /v1//completions", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"the version twice", "POST /v1/v1", "{}", nil, 404, "unknown_url", "", closedPath},
	{"operators' paths", "GET /internal/slots", "", nil, 404, "unknown_url", "", noSuchPath},
	{"an agent's paths", "POST /internal/slots", `{"model":"m"}`, nil, 404, "unknown_url", "", noSuchPath},
	{"profiles", "GET /debug/pprof/", "", nil, 404, "unknown_url", "", noSuchPath},
	{"a call that manages engines", "POST /sleep", `{"model":"m"}`, nil, 403, "admin_only", "", forOthers},
	{"the same below the version", "POST /v1/load_lora_adapter", `{"model":"m"}`, nil, 403, "admin_only", "", forOthers},
	{"the same escaped", "POST /v1/%73leep", `{"model":"m"}`, nil, 403, "admin_only", "", forOthers},
	{"an unknown model to describe", "GET /v1/models/x%2Fy", "", nil, 404, "model_not_found", "model", noModel(`"x/y"`)},
	{"an unknown response", "GET /v1/responses/resp_1", "", nil, 503, "response_unreachable", "response_id", errOwnerUnknown.Error()},
	{"a response with a bad id", "GET /v1/responses/a%2Fb", "", nil, 404, "unknown_url", "", noSuchPath},
	{"GET for POST", "GET /v1/chat/completions", "", nil, 405, "method_not_allowed", "", notThisWay},
	{"PUT without version", "PUT /chat/completions", "{}", nil, 405, "method_not_allowed", "", notThisWay},
	{"OPTIONS", "OPTIONS /v1/chat/completions", "", nil, 405, "method_not_allowed", "", notThisWay},
	{"POST for GET", "POST /models", `{"model":"m"}`, nil, 405, "method_not_allowed", "", notThisWay},
	{"DELETE of a model", "DELETE /v1/models/m", "", nil, 405, "method_not_allowed", "", notThisWay},
	{"a method that nobody knows", "BREW /v1/completions", "", nil, 405, "method_not_allowed", "", notThisWay},
	{"plain text", "", `{"model":"m"}`, []string{"Content-Type", "text/plain"}, 415, "unsupported_content_type", "", wrongType},
	{"a simple form", "", "model=m", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_content_type", "", wrongType},
	{"lines of JSON", "", `{"model":"m"}`, []string{"Content-Type", "application/jsonl"}, 415, "unsupported_content_type", "", wrongType},
	{"a nonsense type", "", `{"model":"m"}`, []string{"Content-Type", ";;;,"}, 415, "unsupported_content_type", "", wrongType},
	{"gzip", "", "x", []string{"Content-Encoding", "gzip"}, 415, "unsupported_content_encoding", "", compressed},
	{"gzip among others", "", "x", []string{"Content-Encoding", "identity, gzip"}, 415, "unsupported_content_encoding", "", compressed},
	{"too large a body", completions, strings.Repeat("x", 2<<20), nil, 413, "request_too_large", "", tooLarge},
	{"a time that is no number", "", `{"model":"m"}`, []string{timeoutHeader, "soon"}, 400, "invalid_timeout", "x-request-timeout-seconds", badTimeout},
	{"a time below zero", "", `{"model":"m"}`, []string{timeoutHeader, "-1"}, 400, "invalid_timeout", "x-request-timeout-seconds", badTimeout},
	{"no time", "", `{"model":"m"}`, []string{timeoutHeader, "0"}, 400, "invalid_timeout", "x-request-timeout-seconds", badTimeout},
	{"a form without boundary", "POST /v1/audio/transcriptions", "--B--", []string{"Content-Type", "multipart/form-data"}, 400, "invalid_form", "", noBoundary},
	{"a form that is none", "POST /v1/audio/transcriptions", "{}", []string{"Content-Type", formHeader}, 400, "invalid_form", "", noWholeForm},
	{"a form that is cut", "POST /v1/audio/transcriptions", "--B\r\n\r\nx", []string{"Content-Type", formHeader}, 400, "invalid_form", "", noWholeForm},
	{"a form without a model", "POST /v1/audio/translations", "--B\r\n\r\nx\r\n--B--", []string{"Content-Type", formHeader}, 400, "model_required", "model", namesNone},
}

func TestErrorTextsOfBadInput(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)), modelOn("n", refusing(2)))
	for _, row := range append(badBodies, badHeads...) {
		method, path, ok := strings.Cut(row.call, " ")
		if !ok {
			method, path = "POST", "/v1/chat/completions"
		}
		for protocol, client := range map[string]*http.Client{"HTTP/1.1": f.h1, "h2": f.h2} {
			t.Run(row.name+"/"+protocol, func(t *testing.T) {
				r := f.do(t.Context(), client, method, path, strings.NewReader(row.body), row.headers...)
				wantError(t, r, row.status, row.code, row.param)
				var e errorBody
				if err := json.Unmarshal([]byte(r.body), &e); err != nil || e.Error.Message != row.message {
					t.Errorf("the message is %q, want %q", e.Error.Message, row.message)
				}
				if len(r.body) > 1000 || strings.Contains(r.body, "goroutine") {
					t.Errorf("the response is %.2000s", r.body)
				}
			})
		}
	}
}

// net/http itself rejects what is not HTTP, before there is a request.
func TestErrorNotHTTP(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	const post, host = "POST /v1/completions HTTP/1.1\r\n", "Host: berth\r\n"
	for name, row := range map[string]struct {
		request string
		status  int
		text    string
	}{
		"no protocol":              {"GET /livez\r\n\r\n", 400, "400 Bad Request"},
		"a protocol of the future": {"GET /livez HTTP/9.9\r\n\r\n", 505, "505 HTTP Version Not Supported"},
		"no host":                  {post + "\r\n", 400, "400 Bad Request"},
		"two hosts":                {post + host + host + "\r\n", 400, "400 Bad Request"},
		"a bad host":               {post + "Host: a b\r\n\r\n", 400, "400 Bad Request"},
		"a field without colon":    {post + host + "X\r\n\r\n", 400, "400 Bad Request"},
		"a blank in a name":        {post + host + "X y: z\r\n\r\n", 400, "400 Bad Request"},
		"a NUL in a value":         {post + host + "X: a\x00b\r\n\r\n", 400, "400 Bad Request"},
		"a blank in the path":      {"POST /v1/a b HTTP/1.1\r\n" + host + "\r\n", 400, "400 Bad Request"},
		"half an escape":           {"POST /v1/%4 HTTP/1.1\r\n" + host + "\r\n", 400, "400 Bad Request"},
		"a negative length":        {post + host + "Content-Length: -1\r\n\r\n", 400, "400 Bad Request"},
		"two lengths":              {post + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "400 Bad Request"},
		"an unknown coding":        {post + host + "Transfer-Encoding: gzip\r\n\r\n", 501, "Unsupported transfer encoding"},
		"a header without end":     {post + host + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", 431, "431 Request Header Fields Too Large"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, answer := f.raw("")
			go io.WriteString(conn, row.request)
			r := readReply(t, answer, "POST")
			if r.StatusCode != row.status || !strings.HasPrefix(r.body, row.text) {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
}

func TestErrorBadInputTableIsLong(t *testing.T) {
	if n := len(badBodies) + len(badHeads); n < 60 {
		t.Errorf("it has %d rows", n)
	}
}
