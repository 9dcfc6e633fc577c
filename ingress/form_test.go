package ingress

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

const formHeader = `multipart/form-data; boundary=B`

// formOf writes a form with LF for CRLF.
func formOf(lines ...string) string {
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\r\n")
}

// transcription returns a form as SDKs send it, with a file of n bytes before the model.
func transcription(t *testing.T, model string, n int) (contentType, body string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file, err := w.CreateFormFile("file", "speech.wav")
	if err != nil {
		t.Fatal(err)
	}
	file.Write(bytes.Repeat([]byte("\r\n--\x00\xff"), n/6))
	w.WriteField("model", model)
	w.WriteField("stream", "true")
	w.Close()
	return w.FormDataContentType(), b.String()
}

func TestProxyPassesAudioFilesUnchanged(t *testing.T) {
	url, requests := recording(t)
	named := modelOn("whisper", url)
	renamed := modelOn("alias", url+"/renamed")
	renamed.ServedName = `openai/whisper "large"`
	f := serve(t, named, renamed)
	for _, path := range []string{"/v1/audio/transcriptions", "/audio/translations", "/v1/images/edits"} {
		for _, client := range []*http.Client{f.h1, f.h2} {
			for model, served := range map[string]string{"whisper": "whisper", "alias": renamed.ServedName} {
				contentType, body := transcription(t, model, 600<<10)
				r := f.do(t.Context(), client, "POST", path, strings.NewReader(body), "Content-Type", contentType)
				if r.body != "ok" {
					t.Fatalf("%s got %d %s", path, r.StatusCode, r.body)
				}
				want := strings.Replace(body, "\r\n\r\n"+model+"\r\n", "\r\n\r\n"+served+"\r\n", 1)
				if s := receive(t, requests); s.body != want || s.length != int64(len(want)) || s.header.Get("Content-Type") != contentType {
					t.Errorf("%s came with %d bytes of %d as %s", path, len(s.body), len(want), s.header.Get("Content-Type"))
				}
			}
		}
	}
}

func TestProxyRejectsMalformedForms(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)), modelOn("n", refusing(2)))
	post := func(contentType, body string) reply {
		return f.post("/v1/audio/transcriptions", body, "Content-Type", contentType)
	}
	wantError(t, post("multipart/form-data", formOf("--B--")), 400, "invalid_form", "")
	wantError(t, post(formHeader, "no form"), 400, "invalid_form", "")
	wantError(t, post(formHeader, formOf("--B--")), 400, "model_required", "model")
	wantError(t, post(formHeader, formOf("--B", `Content-Disposition: form-data; name="model"`, "", "x", "--B--")), 404, "model_not_found", "model")
	contentType, body := transcription(t, "m", 2<<20)
	wantError(t, post(contentType, body), 413, "request_too_large", "")
}
