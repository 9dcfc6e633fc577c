package openai

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
)

const (
	formMediaType = "multipart/form-data"
	formHeader    = `multipart/form-data; boundary=B`
)

// formOf writes a form with LF for CRLF.
func formOf(lines ...string) string {
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\r\n")
}

func TestScanFormFindsTheModelInAnyPosition(t *testing.T) {
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
		form, err := scanForm(formHeader, []byte(c.body))
		if err != nil || form.Model == nil || string(form.Model) != c.model || form.Stream != c.stream || !form.Form {
			t.Errorf("%s: model %q, stream %v, %v", name, form.Model, form.Stream, err)
		}
		if string(form.ModelAt.Of([]byte(c.body))) != c.model {
			t.Errorf("%s: the model is at %v", name, form.ModelAt)
		}
	}
	for name, body := range map[string]string{"a file": formOf(file, "--B--"), "no part": formOf("--B--")} {
		if form, err := scanForm(formHeader, []byte(body)); err != nil || form.Model != nil || !form.ModelAt.Absent() {
			t.Errorf("%s: model %q, %v", name, form.Model, err)
		}
	}
}

func TestScanFormRejectsMalformedForms(t *testing.T) {
	model := "--B\nContent-Disposition: form-data; name=\"model\"\n\nm"
	for name, c := range map[string]struct {
		header, body string
		want         error
	}{
		"no boundary":      {formMediaType, formOf(model, "--B--"), ErrFormBoundary},
		"an empty one":     {formMediaType + `; boundary=""`, formOf(model, "--B--"), ErrFormBoundary},
		"a long one":       {formMediaType + "; boundary=" + strings.Repeat("B", 71), formOf(model, "--B--"), ErrFormBoundary},
		"a broken header":  {formMediaType + "; boundary=\"B", formOf(model, "--B--"), ErrFormBoundary},
		"empty":            {formHeader, "", ErrFormMalformed},
		"JSON":             {formHeader, `{"model":"m"}`, ErrFormMalformed},
		"cut in a part":    {formHeader, formOf(model), ErrFormMalformed},
		"cut in a head":    {formHeader, formOf(model, "--B", "Content-Dis"), ErrFormMalformed},
		"not closed":       {formHeader, formOf(model, "--B", ""), ErrFormMalformed},
		"another boundary": {formHeader, formOf("--C", "", "--C--"), ErrFormMalformed},
		"bare line feeds":  {formHeader, model + "\n--B--", ErrFormMalformed},
		"an endless head":  {formHeader, formOf("--B", "X: "+strings.Repeat("y", maxPartHeader), "", "", "--B--"), ErrFormMalformed},
		"a mixed head":     {formHeader, strings.Replace(formOf(model, "--B--"), "\r\n\r\n", "\n\r\n\r\n", 1), ErrFormMalformed},
		"a preamble":       {formHeader, formOf("hello", model, "--B--"), ErrFormMalformed},
		"no head":          {formHeader, formOf("--B", "no colon", "", "", "--B--"), ErrFormMalformed},
		"two models":       {formHeader, formOf(model, model, "--B--"), ErrDuplicateModel},
		"too many parts":   {formHeader, formOf(strings.Repeat("--B\n\nx\n", maxParts+1) + "--B--"), ErrFormParts},
	} {
		if _, err := scanForm(c.header, []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// FuzzScanFormAgreesWithMultipart compares the model that is found with that of mime/multipart.
func FuzzScanFormAgreesWithMultipart(f *testing.F) {
	model := "--B\nContent-Disposition: form-data; name=\"model\"\n\nm"
	for _, seed := range []string{
		formOf(model, "--B--"), formOf("x", model, "--B--\ny"), formOf("--B", "", "--B--"), formOf(model, model, "--B--"),
		formOf("--B", `Content-Disposition: form-data; name="f"; filename="model"`, "", "\x00\xff", model, "--B--"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		form, err := scanForm(formHeader, body)
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
				return // mime/multipart is stricter
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
		if !bytes.Equal(form.Model, want) {
			t.Fatalf("model %q, want %q", form.Model, want)
		}
		if !form.ModelAt.Absent() && !bytes.Equal(form.ModelAt.Of(body), form.Model) {
			t.Fatalf("model %q is not at %v", form.Model, form.ModelAt)
		}
	})
}
