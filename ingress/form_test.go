package ingress

import (
	"bytes"
	"errors"
	"io"
	"mime"
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

func TestTheModelOfAFormIsFoundWhereverItStands(t *testing.T) {
	file := "--B\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\nContent-Type: audio/wav\n\nRIFF\n--\n--BX\n\x00"
	model := "--B\nContent-Disposition: form-data; name=\"model\"\n\nwhisper"
	for name, c := range map[string]struct {
		body   string
		model  string
		stream bool
	}{
		"first":            {formOf(model, file, "--B--\n"), "whisper", false},
		"behind the file":  {formOf(file, model, "--B--\n"), "whisper", false},
		"alone":            {formOf(model, "--B--"), "whisper", false},
		"with an epilogue": {formOf("", model, "--B--", "epilogue"), "whisper", false},
		"padded delimiter": {formOf("--B \t", model[4:], "--B--"), "whisper", false},
		"no quotes":        {formOf("--B", "content-disposition:form-data;name=model", "", "a b", "--B--"), "a b", false},
		"empty":            {formOf("--B", `Content-Disposition: form-data; name="model"`, "", "", "--B--"), "", false},
		"streamed":         {formOf("--B", `Content-Disposition: form-data; name="stream"`, "", "true", model, "--B--"), "whisper", true},
		"not streamed":     {formOf("--B", `Content-Disposition: form-data; name="stream"`, "", "false", model, "--B--"), "whisper", false},
		"odd parts":        {formOf("--B", "", "headless", "--B", "X: y", "", "z", model, "--B--"), "whisper", false},
		"two lines":        {formOf("--B", `Content-Disposition: form-data; name="model"`, "", "a\n--C\nb", "--B--"), "a\r\n--C\r\nb", false},
	} {
		p, err := scanForm(formHeader, []byte(c.body))
		if err != nil || p.model == nil || string(p.model) != c.model || p.stream != c.stream || !p.form {
			t.Errorf("%s: model %q, stream %v, %v", name, p.model, p.stream, err)
		}
		if string(p.modelAt.of([]byte(c.body))) != c.model {
			t.Errorf("%s: the model is at %v", name, p.modelAt)
		}
	}
	for name, body := range map[string]string{"a file": formOf(file, "--B--"), "no part": formOf("--B--")} {
		if p, err := scanForm(formHeader, []byte(body)); err != nil || p.model != nil || !p.modelAt.absent() {
			t.Errorf("%s: model %q, %v", name, p.model, err)
		}
	}
}

func TestABadFormIsToldSo(t *testing.T) {
	model := "--B\nContent-Disposition: form-data; name=\"model\"\n\nm"
	for name, c := range map[string]struct {
		header, body string
		want         error
	}{
		"no boundary":      {formType, formOf(model, "--B--"), errFormBoundary},
		"an empty one":     {formType + `; boundary=""`, formOf(model, "--B--"), errFormBoundary},
		"a long one":       {formType + "; boundary=" + strings.Repeat("B", 71), formOf(model, "--B--"), errFormBoundary},
		"a broken header":  {formType + "; boundary=\"B", formOf(model, "--B--"), errFormBoundary},
		"empty":            {formHeader, "", errFormBroken},
		"JSON":             {formHeader, `{"model":"m"}`, errFormBroken},
		"cut in a part":    {formHeader, formOf(model), errFormBroken},
		"cut in a head":    {formHeader, formOf(model, "--B", "Content-Dis"), errFormBroken},
		"not closed":       {formHeader, formOf(model, "--B", ""), errFormBroken},
		"another boundary": {formHeader, formOf("--C", "", "--C--"), errFormBroken},
		"bare line feeds":  {formHeader, model + "\n--B--", errFormBroken},
		"an endless head":  {formHeader, formOf("--B", "X: "+strings.Repeat("y", maxPartHead), "", "", "--B--"), errFormBroken},
		"a mixed head":     {formHeader, strings.Replace(formOf(model, "--B--"), "\r\n\r\n", "\n\r\n\r\n", 1), errFormBroken},
		"a preamble":       {formHeader, formOf("hello", model, "--B--"), errFormBroken},
		"no head":          {formHeader, formOf("--B", "no colon", "", "", "--B--"), errFormBroken},
		"two models":       {formHeader, formOf(model, model, "--B--"), errDuplicateModel},
		"too many parts":   {formHeader, formOf(strings.Repeat("--B\n\nx\n", maxParts+1) + "--B--"), errFormParts},
	} {
		if _, err := scanForm(c.header, []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// What the standard library finds in a form is what we find.
func FuzzFormAgreesWithMultipart(f *testing.F) {
	model := "--B\nContent-Disposition: form-data; name=\"model\"\n\nm"
	for _, seed := range []string{
		formOf(model, "--B--"), formOf("x", model, "--B--\ny"), formOf("--B", "", "--B--"), formOf(model, model, "--B--"),
		formOf("--B", `Content-Disposition: form-data; name="f"; filename="model"`, "", "\x00\xff", model, "--B--"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := scanForm(formHeader, body)
		if err != nil {
			return
		}
		var want []byte
		for r := multipart.NewReader(bytes.NewReader(body), "B"); ; {
			part, err := r.NextRawPart()
			if err == io.EOF {
				break
			}
			if err != nil {
				return // it wants more of a form than we do
			}
			value, err := io.ReadAll(part)
			if err != nil {
				return
			}
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if _, file := params["filename"]; part.FormName() == "model" && !file {
				want = value
			}
		}
		if !bytes.Equal(p.model, want) {
			t.Fatalf("model %q, want %q", p.model, want)
		}
		if !p.modelAt.absent() && !bytes.Equal(p.modelAt.of(body), p.model) {
			t.Fatalf("model %q is not at %v", p.model, p.modelAt)
		}
	})
}

// transcription is the form that SDKs send, with a file of n bytes before the model.
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

func TestAnAudioFilePassesAndItsAnswerIsStreamed(t *testing.T) {
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

func TestABadFormIsAnsweredBeforeAReplicaIsAsked(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)), modelOn("n", refusing(2)))
	post := func(contentType, body string) reply {
		return f.post("/v1/audio/transcriptions", body, "Content-Type", contentType)
	}
	wantError(t, post(formType, formOf("--B--")), 400, "invalid_form", "")
	wantError(t, post(formHeader, "no form"), 400, "invalid_form", "")
	wantError(t, post(formHeader, formOf("--B--")), 400, "model_required", "model")
	wantError(t, post(formHeader, formOf("--B", `Content-Disposition: form-data; name="model"`, "", "x", "--B--")), 404, "model_not_found", "model")
	contentType, body := transcription(t, "m", 2<<20)
	wantError(t, post(contentType, body), 413, "request_too_large", "")
}
