package openai

import (
	"errors"
	"net/http"
	"strings"
)

// The errors of CheckHeader. Their texts are sentences for the client.
var (
	ErrContentType     = errors.New("The Content-Type of the request must be application/json, or multipart/form-data where files are sent.")
	ErrContentEncoding = errors.New("The request body must be sent without a Content-Encoding.")
)

// CheckHeader returns an error unless ScanBody can read a body with this header: JSON or a
// multipart form, and not compressed.
func CheckHeader(h http.Header) error {
	if contentType := h.Get("Content-Type"); !isJSON(contentType) && !isForm(contentType) {
		return ErrContentType
	}
	for _, encoding := range h.Values("Content-Encoding") {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return ErrContentEncoding
		}
	}
	return nil
}

// isJSON reports whether a Content-Type may announce JSON: an absent one or a JSON type.
func isJSON(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return strings.TrimSpace(contentType) == "" || mediaType == "application/json" ||
		strings.HasPrefix(mediaType, "application/") && strings.HasSuffix(mediaType, "+json")
}

// isForm reports whether a Content-Type announces a form with files, as for audio and images.
func isForm(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "multipart/form-data")
}
