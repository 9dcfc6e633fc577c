package streaming

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// naiveEnds returns all offsets at which an event ends, by reading the stream line by line.
func naiveEnds(stream string) (ends []int) {
	line := 0 // where the current line starts
	for i := 0; i < len(stream); i++ {
		if stream[i] != '\r' && stream[i] != '\n' {
			continue
		}
		if i == line {
			ends = append(ends, i+1)
		}
		if stream[i] == '\r' && i+1 < len(stream) && stream[i+1] == '\n' {
			if i == line {
				ends = append(ends, i+2)
			}
			i++
		}
		line = i + 1
	}
	return ends
}

// naiveLast returns the last end of an event beyond from, 0 if there is none.
func naiveLast(stream string, from int) int {
	for _, end := range slices.Backward(naiveEnds(stream)) {
		if end > from {
			return end
		}
	}
	return 0
}

func TestEventEndsAtEmptyLine(t *testing.T) {
	for stream, want := range map[string]int{
		"":                            0,
		"data: a":                     0,
		"data: a\n":                   0,
		"data: a\n\n":                 9,
		"data: a\n\ndata: b\n":        9,
		"data: a\r\n\r\n":             11,
		"data: a\r\n\r\ndata: b\r\n":  11,
		"data: a\r\n\r":               10,
		"data: a\r\r":                 9,
		"data: a\r\rdata: b\r":        9,
		"data: a\r\n\n":               10,
		"data: a\n\r\n":               10,
		"data: a\n\r":                 9,
		"data: a\r\n":                 0,
		"\n":                          1,
		"\r\n":                        2,
		": comment\n\n":               11,
		"data: a\ndata: b\n\nid: 1\n": 17,
	} {
		ends := newEventEnds()
		if got := ends.lastEnd([]byte(stream)); got != want {
			t.Errorf("last end in %q is %d, want %d", stream, got, want)
		}
		if got := naiveLast(stream, 0); got != want {
			t.Errorf("the reference says %d for %q, want %d", got, stream, want)
		}
	}
}

func FuzzEventEndsAtEverySplit(f *testing.F) {
	f.Add([]byte("data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\r\n\n"), uint8(3))
	f.Add([]byte("\r\n\r\r\n\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		ends, from := newEventEnds(), 0
		for piece := range slices.Chunk(stream, int(size)+1) {
			got := ends.lastEnd(piece)
			if got > 0 {
				got += from
			}
			if want := naiveLast(string(stream[:from+len(piece)]), from); got != want {
				t.Fatalf("behind %q, %q ends at %d, want %d", stream[:from], piece, got, want)
			}
			from += len(piece)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\nc\rd\n\n\r\r\n"))
	f.Add([]byte("\r"))
	f.Fuzz(func(t *testing.T, p []byte) {
		text := strings.ReplaceAll(strings.ReplaceAll(string(p), "\r\n", "\n"), "\r", "\n")
		want := strings.Split(text, "\n")
		got, allEnded := []string{}, true
		for line, ended := range lines(p) {
			if !allEnded {
				t.Fatalf("a line of %q follows one without an end", p)
			}
			got, allEnded = append(got, string(line)), ended
		}
		if allEnded {
			got = append(got, "")
		}
		if !slices.Equal(got, want) {
			t.Fatalf("lines of %q are %q, want %q", p, got, want)
		}
	})
}

func BenchmarkEventEnds(b *testing.B) {
	for name, p := range map[string][]byte{
		"whole events": bytes.Repeat([]byte(chunk), 14),
		"half event":   bytes.Repeat([]byte("x"), smallBuffer),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			ends := newEventEnds()
			for b.Loop() {
				ends.lastEnd(p)
			}
		})
	}
}
