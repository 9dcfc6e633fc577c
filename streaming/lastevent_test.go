package streaming

import (
	"errors"
	"strings"
	"testing"
)

// untilClose holds streams that are delimited by the end of their connection, and whether they are
// complete.
var untilClose = map[string]bool{
	"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n":                                         true,
	"event: message_stop\r\ndata: {\"type\":\"message_stop\"}\r\n\r\n":                                   true,
	"event: message_stop\rdata: {}\r\r":                                                                  true,
	"data: {\"type\": \"message_stop\"}\n\n":                                                             true,
	"event:response.completed\ndata: {\"response\":{},\"type\":\"response.completed\"}\n\n":              true,
	"event: response.failed\ndata: {}\n\n":                                                               true,
	"event: response.incomplete\ndata: {}\n\n":                                                           true,
	"event: response.completed\ndata: {\"response\":\"" + strings.Repeat("x", 2*largeBuffer) + "\"}\n\n": true,
	"data: [DONE]\n\n": true,
	"event: message_stop\ndata: {\"type\":\"message_stop\"}\n":                                                   false,
	"event: message_stop\r\ndata: {\"type\":\"message_stop\"}\r\n":                                               false,
	"event: response.completed\ndata: {\"response\":\"" + strings.Repeat("x", 2*largeBuffer):                     false,
	"event: content_block_delta\ndata: {\"delta\":\"event: message_stop\",\"type\":\"content_block_delta\"}\n\n": false,
	"event: response.completed.not\ndata: {}\n\n":                                                                false,
	"event: ping\ndata: {}\n\n": false,
	"":                          false,
}

func TestRelayUnframedStreamEndsWithTerminalEvent(t *testing.T) {
	for text, complete := range untilClose {
		stream := chunk + text
		for _, size := range []int{1, 2, 3, 7, 1000, len(stream)} {
			if size < 1000 && len(stream) > 10_000 {
				continue // takes too long
			}
			var pieces []string
			for rest := stream; rest != ""; {
				n := min(size, len(rest))
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			resp := events(&script{pieces: pieces})
			resp.TransferEncoding, resp.ProtoMajor = nil, 1
			p := newRecorder()
			_, err := relay(t, p, resp)
			if (err == nil) != complete || err != nil && !errors.Is(err, ErrUpstreamBroken) {
				t.Errorf("%.100q in pieces of %d: %v", text, size, err)
			}
			if err == nil && string(p.got) != stream {
				t.Errorf("%.100q in pieces of %d became %.300q", text, size, p.got)
			}
		}
	}
}
