package openai

import (
	"net/http"
	"testing"
)

func TestCheckHeaderAcceptsJSONTypes(t *testing.T) {
	for contentType, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, " application/json ;x": true,
		"application/vnd.api+json": true, "application/jsonl": false, "text/json": false, "image/svg+json": false,
		"multipart/form-data; boundary=json": false, "application/x-www-form-urlencoded": false,
	} {
		if got := isJSON(contentType); got != want {
			t.Errorf("%q: %t", contentType, got)
		}
	}
}

func TestCheckHeaderRejectsContentEncodings(t *testing.T) {
	for encoding, want := range map[string]error{"": nil, "Identity": nil, "gzip": ErrContentEncoding, "identity, br": ErrContentEncoding} {
		if err := CheckHeader(http.Header{"Content-Encoding": {encoding}}); err != want {
			t.Errorf("%q: %v", encoding, err)
		}
	}
}
