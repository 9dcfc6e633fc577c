package ingress

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestErrorHeaderTooLarge(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, ok)))
	body := chat("m")
	call := func(target, header string) reply {
		_, r := f.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", target, header, len(body), body))
		return readReply(t, r, http.MethodPost)
	}
	const path = "/v1/chat/completions"
	for _, cookie := range []int{0, 8 << 10, 63 << 10} {
		if r := call(path, "Cookie: "+strings.Repeat("c", cookie)+"\r\n"); r.StatusCode != http.StatusOK {
			t.Errorf("a cookie of %d bytes: got %d %s", cookie, r.StatusCode, r.body)
		}
	}
	wantError(t, call(path, "Cookie: "+strings.Repeat("c", 65<<10)+"\r\n"), 431, "header_too_large", "")
	wantError(t, call(path, strings.Repeat("A: b\r\n", 12<<10)), 431, "header_too_large", "")
	wantError(t, call(path+"?"+strings.Repeat("q", 65<<10), ""), 431, "header_too_large", "")
	wantError(t, f.do(t.Context(), f.h2, "POST", path, strings.NewReader(body), "Cookie", strings.Repeat("c", 65<<10)), 431, "header_too_large", "")
	if r := call(path, "Cookie: "+strings.Repeat("c", 160<<10)+"\r\n"); r.StatusCode != 431 {
		t.Errorf("a cookie of 160 KiB: got %d %s", r.StatusCode, r.body)
	}
}
