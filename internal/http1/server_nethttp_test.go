package http1

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// compareWithNetHTTP sends the same bytes to both servers and compares their responses and what
// their handlers saw.
func compareWithNetHTTP(t testing.TB, ours, oracle *testServer, pieces ...string) {
	t.Helper()
	responses, cut := ours.exchange(t, pieces...)
	want, wantCut := oracle.exchange(t, pieces...)
	seen, wantSeen := ours.takeRecords(), oracle.takeRecords()
	if !slices.Equal(seen, wantSeen) {
		t.Errorf("the handler saw\n%s\nand with net/http\n%s", strings.Join(seen, "\n"), strings.Join(wantSeen, "\n"))
	}
	if cut || wantCut { // compare all but the last that both have
		n := max(min(len(responses), len(want))-1, 0)
		responses, want = responses[:n], want[:n]
	}
	if a, b := formatResponses(responses), formatResponses(want); a != b {
		t.Errorf("the client got\n%s\nand from net/http\n%s", a, b)
	}
}

func formatResponses(responses []response) string {
	var all strings.Builder
	for _, a := range responses {
		if len(a.Body) > 300 {
			a.Body = fmt.Sprintf("%s … %d bytes, sum %d", a.Body[:100], len(a.Body), checksum(a.Body))
		}
		line, _ := json.Marshal(a)
		all.Write(append(line, '\n'))
	}
	return all.String()
}

func checksum(s string) (h uint32) {
	for i := range len(s) {
		h = h*31 + uint32(s[i])
	}
	return h
}

func TestServerResponsesMatchNetHTTP(t *testing.T) {
	ours, oracle := serve(t, shapeHandler), serveNetHTTP(t, shapeHandler)
	for name := range responseShapes {
		t.Run(name, func(t *testing.T) {
			path := (&url.URL{Path: "/" + name}).String()
			get := "GET " + path + " HTTP/1.1\r\nHost: h\r\n"
			post := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n", path)
			next := "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"
			compareWithNetHTTP(t, ours, oracle, get+"\r\n"+next)
			compareWithNetHTTP(t, ours, oracle, get+"Connection: close\r\n\r\n"+next)
			compareWithNetHTTP(t, ours, oracle, post+"\r\nhello world"+next)
			compareWithNetHTTP(t, ours, oracle, post+"\r\nhello", " world"+next)
			compareWithNetHTTP(t, ours, oracle, post+"Connection: close\r\n\r\nhello world"+next)
		})
	}
}

// rawRequests are valid, unusual and hostile requests. Each is followed by a simple one.
var rawRequests = map[string]string{
	"none":               "",
	"plain":              "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n",
	"usual":              "POST /echo?a=b&c=%20 HTTP/1.1\r\nHost: h:80\r\nuser-agent: x\r\nACCEPT: a, b\r\nAuthorization: Bearer x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"repeated":           "GET / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a:2\r\nX-A:\t3 \r\nCookie: a\r\n\r\n",
	"empty value":        "GET / HTTP/1.1\r\nHost: h\r\nX-A:\r\nX-B:   \r\n\r\n",
	"pragma":             "GET / HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n",
	"pragma and control": "GET / HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\nCache-Control: x\r\n\r\n",
	"no host":            "GET / HTTP/1.1\r\n\r\n",
	"two hosts":          "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"empty host":         "GET / HTTP/1.1\r\nHost:\r\n\r\n",
	"bad host":           "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
	"odd host":           "GET / HTTP/1.1\r\nHost: a/../b,c\r\n\r\n",
	"length and coding":  "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"coding and length":  "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
	"chunked":            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\nX-T: a\r\n\r\n",
	"chunked, trailer":   "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n4\r\nabcd\r\n0\r\nX-T: a\r\n\r\n",
	"coded oddly":        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n",
	"coded with a tab":   "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
	"coded with a space": "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"two lengths":        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
	"two equal lengths":  "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
	"lengths in one":     "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4, 4\r\n\r\nabcd",
	"length with a plus": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +4\r\n\r\nabcd",
	"negative length":    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -4\r\n\r\nabcd",
	"length in hex":      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x4\r\n\r\nabcd",
	"length with zeros":  "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0004\r\n\r\nabcd",
	"length underscored": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\nabcdefghij",
	"huge length":        "POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\nabcd",
	"large length":       "POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 4611686018427387904\r\n\r\nabcd",
	"empty length":       "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\nabcd",
	"short body":         "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4444\r\n\r\nabcd",
	"short large body":   "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 270000\r\n\r\nabcd",
	"short closed body":  "POST /read%20and%20closed HTTP/1.1\r\nHost: h\r\nContent-Length: 270000\r\n\r\nabcd",
	"get with a body":    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd",
	"folded":             "GET / HTTP/1.1\r\nHost: h\r\nX-A: a\r\n b\r\n\r\n",
	"folded first":       "GET / HTTP/1.1\r\n Host: h\r\n\r\n",
	"folded length":      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n 4\r\n\r\nabcd",
	"bare LF":            "GET / HTTP/1.1\nHost: h\n\n",
	"bare LF within":     "GET / HTTP/1.1\r\nHost: h\nX-A: b\r\n\r\n",
	"bare LF at the end": "GET / HTTP/1.1\r\nHost: h\r\n\n",
	"bare CR":            "GET / HTTP/1.1\r\nHost: h\r\nX-A: a\rb\r\n\r\n",
	"CR CR LF":           "GET / HTTP/1.1\r\nHost: h\r\r\n\r\n",
	"space before colon": "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
	"no colon":           "GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n",
	"no name":            "GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n",
	"NUL in a value":     "GET / HTTP/1.1\r\nHost: h\r\nX-A: a\x00b\r\n\r\n",
	"NUL in a name":      "GET / HTTP/1.1\r\nHost: h\r\nX\x00A: b\r\n\r\n",
	"NUL in the path":    "GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n",
	"DEL in a value":     "GET / HTTP/1.1\r\nHost: h\r\nX-A: \x7f\r\n\r\n",
	"UTF-8 in a value":   "GET / HTTP/1.1\r\nHost: h\r\nX-A: é\r\n\r\n",
	"UTF-8 in the path":  "GET /é HTTP/1.1\r\nHost: h\r\n\r\n",
	"escapes":            "GET /a%2Fb%20c/../d?x=%zz HTTP/1.1\r\nHost: h\r\n\r\n",
	"bad escape":         "GET /a%zz HTTP/1.1\r\nHost: h\r\n\r\n",
	"odd path":           "GET //a//b/./..;x=y:@!$&'()*+,=~?? HTTP/1.1\r\nHost: h\r\n\r\n",
	"empty query":        "GET /a? HTTP/1.1\r\nHost: h\r\n\r\n",
	"fragment":           "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
	"absolute":           "GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n",
	"asterisk":           "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
	"options":            "OPTIONS /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"connect":            "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
	"head":               "HEAD /3000 HTTP/1.1\r\nHost: h\r\n\r\n",
	"put":                "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx",
	"delete":             "DELETE /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"unknown method":     "FROB /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"lower-case method":  "get /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"bad method":         "G@T /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"method with more":   "GETX /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"no path":            "GET  HTTP/1.1\r\nHost: h\r\n\r\n",
	"two spaces":         "GET  /a  HTTP/1.1\r\nHost: h\r\n\r\n",
	"space in the path":  "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
	"version 1.0":        "GET /a HTTP/1.0\r\nHost: h\r\n\r\n",
	"version 1.0 kept":   "GET /a HTTP/1.0\r\nConnection: keep-alive\r\nHost: h\r\n\r\n",
	"version 1.2":        "GET /a HTTP/1.2\r\nHost: h\r\n\r\n",
	"version 2.0":        "GET /a HTTP/2.0\r\nHost: h\r\n\r\n",
	"version 9":          "GET /a\r\n\r\n",
	"no version":         "GET /a HTTP/\r\nHost: h\r\n\r\n",
	"connection kept":    "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Keep-Alive\r\n\r\n",
	"connection closed":  "GET /a HTTP/1.1\r\nHost: h\r\nconnection: CLOSE\r\n\r\n",
	"connection of both": "GET /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\r\n",
	"two connections":    "GET /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
	"hop by hop":         "GET /a HTTP/1.1\r\nHost: h\r\nConnection: x-a\r\nX-A: b\r\n\r\n",
	"upgrade":            "GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	"h2c upgrade":        "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	"expect":             "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nabcd",
	"expect otherwise":   "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: more\r\n\r\nabcd",
	"TLS":                "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	"empty lines":        "\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"lines after a post": "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"many lines after":   "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx\r\n\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"lines after a get":  "GET /a HTTP/1.1\r\nHost: h\r\n\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"pipelined":          strings.Repeat("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET /events HTTP/1.1\r\nHost: h\r\n\r\n", 60),
	"pipelined, unread":  strings.Repeat("POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 5),
	"smuggled":           "POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 41\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n",
	"large header":       "GET /a HTTP/1.1\r\nHost: h\r\nX-A: " + long[:9000] + "\r\n\r\n",
	"header of a page":   "GET /a HTTP/1.1\r\nHost: h\r\nX-A: " + long[:4096-37] + "\r\n\r\n",
	"many fields":        "GET /a HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", 600) + "\r\n",
	"cut in the line":    "GET /a HT",
	"cut in a field":     "GET /a HTTP/1.1\r\nHost: h\r\nX-A",
	"cut before the end": "GET /a HTTP/1.1\r\nHost: h\r\n",
	"two bytes":          "GE",
	"a short line":       "0\n",
	"an empty line":      "\r\n",
}

func TestServerParsesRequestsAsNetHTTP(t *testing.T) {
	ours, oracle := serve(t, shapeHandler), serveNetHTTP(t, shapeHandler)
	const before, after = "GET /before HTTP/1.1\r\nHost: h\r\n\r\n", "GET /after HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	for name, request := range rawRequests {
		t.Run(name, func(t *testing.T) {
			compareWithNetHTTP(t, ours, oracle, request)
			compareWithNetHTTP(t, ours, oracle, request+after)
			compareWithNetHTTP(t, ours, oracle, before+request+after)
			compareWithNetHTTP(t, ours, oracle, before, request[:len(request)/2], request[len(request)/2:])
		})
	}
}

// An unread body is drained up to net/http's bound, and its end is not taken for a request.
func TestServerDrainsUnreadBodiesAsNetHTTP(t *testing.T) {
	ours, oracle := serve(t, shapeHandler), serveNetHTTP(t, shapeHandler)
	for _, path := range []string{"/unread", "/half%20read", "/closed", "/closing", "/duplex"} {
		for _, size := range []int{1, 4000, 100_000, maxDrain - 1, maxDrain, maxDrain + 1, 300_000, 1_000_000} {
			t.Run(fmt.Sprint(path, " ", size), func(t *testing.T) {
				if path == "/closed" && size == maxDrain {
					t.Skip("net/http reads all of it and closes the connection nevertheless")
				}
				header := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", path, size)
				compareWithNetHTTP(t, ours, oracle, header, strings.Repeat("x", size), "GET /next HTTP/1.1\r\nHost: h\r\n\r\n")
			})
		}
	}
}

func FuzzServerMatchesNetHTTP(f *testing.F) {
	for _, request := range rawRequests {
		f.Add(request, uint16(20))
		f.Add("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"+request, uint16(60))
	}
	for name := range responseShapes {
		path := (&url.URL{Path: "/" + name}).String()
		f.Add("POST "+path+" HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: h\r\n\r\n", uint16(9))
	}
	ours, oracle := serve(f, shapeHandler), serveNetHTTP(f, shapeHandler)
	f.Fuzz(func(t *testing.T, input string, at uint16) {
		if len(input) > 64<<10 || strings.Contains(input, "PRI * HTTP/2.0") { // the response of HTTP/2 to nonsense depends on timing
			return
		}
		cut := min(int(at), len(input))
		compareWithNetHTTP(t, ours, oracle, input[:cut], input[cut:])
	})
}
