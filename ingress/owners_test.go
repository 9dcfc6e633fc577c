package ingress

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"unsafe"
)

func TestOwnersSniffIDAtEverySplit(t *testing.T) {
	text := `{"object":"response","id" : "resp_1-a.B","output":[]}`
	for size := 1; size <= len(text); size++ {
		var got []string
		l := &idSniffer{ReadCloser: io.NopCloser(strings.NewReader(text)), found: func(id string) { got = append(got, id) }}
		var read []byte
		for p := make([]byte, size); ; {
			n, err := l.Read(p)
			read = append(read, p[:n]...)
			if err != nil {
				break
			}
		}
		if string(read) != text || len(got) != 1 || got[0] != "resp_1-a.B" {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
	for _, text := range []string{
		`{"error":{}}`, `{"id":"chatcmpl-1"}`, `{"id":"resp_`, `{"id":"resp_ü"}`, `{"x":"\"id\":\"resp_1\""}`, `{"id":null}`, "",
		`{"pad":"` + strings.Repeat("x", maxSniffedBytes) + `","id":"resp_late"}`, `{"id":"resp` + strings.Repeat("x", maxResponseID) + `"}`,
	} {
		l := &idSniffer{ReadCloser: io.NopCloser(strings.NewReader(text)), found: func(id string) { t.Errorf("found %q in %.40s", id, text) }}
		if got, err := io.ReadAll(l); string(got) != text || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
	}
}

func TestOwnersForgetOldResponses(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	r := f.registry.table.Load().models[0].replicas[0]
	var h responseOwners
	for i := range 3 * maxOwners {
		h.setOwner(fmt.Sprint(i), r)
		h.setOwner(fmt.Sprint(i), r)
	}
	if len(h.replicas.values) != maxOwners || len(h.replicas.ids) != maxOwners {
		t.Errorf("%d are remembered, in a ring of %d", len(h.replicas.values), len(h.replicas.ids))
	}
	if h.owner(fmt.Sprint(2*maxOwners)) != r || h.owner(fmt.Sprint(2*maxOwners-1)) != nil {
		t.Error("other responses than the oldest were forgotten")
	}
}

func TestOwnersKeepOnlyID(t *testing.T) {
	head := "GET /v1/responses/resp_1 HTTP/1.1"
	var h responseOwners
	for range 2 { // an assignment replaces an equal string key of a map
		h.setOwner(head[len("GET /v1/responses/"):][:len("resp_1")], nil)
		for id := range h.replicas.values {
			if within := uintptr(unsafe.Pointer(unsafe.StringData(id))) - uintptr(unsafe.Pointer(unsafe.StringData(head))); within < uintptr(len(head)) {
				t.Errorf("%s is part of the request header, at %d", id, within)
			}
		}
	}
}
