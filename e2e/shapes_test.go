package e2e

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/pagination"
	"github.com/openai/openai-go/v3/packages/respjson"
)

// checkShape decodes JSON into a type that the official Go SDK generates from the API description,
// and checks that all fields of the type are present with a valid value and that there are no
// others. Fields named in nullable may be null, and those named in absent may be missing.
func checkShape(t *testing.T, text []byte, into any, nullable, absent string) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Errorf("%v in %s", err, text)
		return
	}
	fields := reflect.ValueOf(into).Elem().FieldByName("JSON")
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		switch field := fields.Field(i); {
		case name == "ExtraFields":
			if field.Len() > 0 {
				t.Errorf("%s has fields beyond the description: %v", text, field.MapKeys())
			}
		case field.Type() == reflect.TypeFor[respjson.Field]():
			f := field.Interface().(respjson.Field)
			missing := f.Raw() == "" && !strings.Contains(absent, name)
			null := f.Raw() == respjson.Null && !strings.Contains(nullable, name)
			if missing || null || f.Raw() != "" && f.Raw() != respjson.Null && !f.Valid() {
				t.Errorf("field %s of %s is %q", name, text, f.Raw())
			}
		}
	}
}

func TestModelsHaveTheShapeOfTheOfficialDescription(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	list := new(pagination.Page[openai.Model])
	checkShape(t, e.getPage(t, e.url+"/v1/models").body, list, "", "")
	if len(list.Data) != 6 || list.Object != "list" {
		t.Errorf("unexpected list %+v", list)
	}
	var raw struct{ Data []json.RawMessage }
	if err := json.Unmarshal([]byte(list.RawJSON()), &raw); err != nil {
		t.Fatal(err)
	}
	for _, text := range append(raw.Data, e.getPage(t, e.url+"/v1/models/assistant").body) {
		one := new(openai.Model)
		if checkShape(t, text, one, "", "ShutdownDate"); one.Object != "model" {
			t.Errorf("wrong object in %s", text)
		}
	}
}

func TestErrorsHaveTheShapeOfTheOfficialDescription(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newClient(t, false)
	statuses := make(map[int]bool)
	for _, c := range []struct{ method, path, contentType, body string }{
		{"GET", "/", "", ""},
		{"GET", "/v1/models/unknown", "", ""},
		{"GET", "/v1/completions", "", ""},
		{"GET", "/v1/responses/resp_1", "", ""},
		{"POST", "/sleep", "application/json", "{}"},
		{"POST", "/v1/chat/completions", "application/json", "{"},
		{"POST", "/v1/chat/completions", "application/json", `{"model":"unknown"}`},
		{"POST", "/v1/chat/completions", "text/plain", "{}"},
		{"POST", "/v1/chat/completions", "application/json", chatBody("full", "Hello", 1, false)},
		{"POST", "/v1/audio/transcriptions", "multipart/form-data", "{}"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, e.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", c.contentType)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		a := readResponse(resp)
		var outer map[string]json.RawMessage
		if err := json.Unmarshal(a.body, &outer); err != nil || len(outer) != 1 {
			t.Errorf("%s %s: %v", c.method, c.path, a)
		}
		checkShape(t, outer["error"], new(openai.Error), "Param Code", "")
		statuses[a.status] = true
	}
	for _, status := range []int{400, 403, 404, 405, 415, 429} {
		if !statuses[status] {
			t.Errorf("no error had status %d", status)
		}
	}
}
