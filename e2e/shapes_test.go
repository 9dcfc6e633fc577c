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

// hasShape decodes JSON into a type that the official Go SDK generates from the official description of the API, and checks that
// each of its fields is there with a value of its type, and nothing else. Of the fields named in nullable a null will do, those
// in absent may be left out.
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
				t.Errorf("%s of %s is %q", name, text, f.Raw())
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
		t.Errorf("the list is %+v", list)
	}
	var raw struct{ Data []json.RawMessage }
	if err := json.Unmarshal([]byte(list.RawJSON()), &raw); err != nil {
		t.Fatal(err)
	}
	for _, text := range append(raw.Data, e.getPage(t, e.url+"/v1/models/assistant").body) {
		one := new(openai.Model)
		if checkShape(t, text, one, "", "ShutdownDate"); one.Object != "model" {
			t.Errorf("the object of %s", text)
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
		{"GET", "/v1/models/nobody", "", ""},
		{"GET", "/v1/completions", "", ""},
		{"GET", "/v1/responses/resp_1", "", ""},
		{"POST", "/sleep", "application/json", "{}"},
		{"POST", "/v1/chat/completions", "application/json", "{"},
		{"POST", "/v1/chat/completions", "application/json", `{"model":"nobody"}`},
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
			t.Errorf("no error was a %d", status)
		}
	}
}
