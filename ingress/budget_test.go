package ingress

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"berth/internal/openai"
)

// trickle sends n bytes in small pieces and calls seen before each with what it has sent so far.
type trickle struct {
	n, sent int
	seen    func(sent int)
}

func (s *trickle) Read(p []byte) (int, error) {
	s.seen(s.sent)
	if s.sent == s.n {
		return 0, io.EOF
	}
	n := min(len(p), 3000, s.n-s.sent)
	s.sent += n
	return n, nil
}

func TestMemoryFollowsWhatHasArrived(t *testing.T) {
	br := &bodyReader{maxBytes: 64 << 20, budget: newBudget(1 << 30)}
	for _, declared := range []int64{64 << 20, -1} {
		r := httptest.NewRequest("POST", "/", &trickle{n: 9 << 20, seen: func(sent int) {
			if held := br.budget.held.Load(); held > int64(max(firstBuffer, 2*sent)) {
				t.Fatalf("%d bytes held when %d had arrived", held, sent)
			}
		}})
		r.ContentLength = declared
		b, err := br.read(httptest.NewRecorder(), r)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
}

func TestAModestLengthIsBelievedOnceSomethingHasArrivedAndWhileHalfOfTheBudgetIsFree(t *testing.T) {
	const declared = believed - 5000
	for _, c := range []struct{ taken, most int }{{2 << 20, believed}, {2<<20 + 1, 2 * firstBuffer}} {
		br := &bodyReader{maxBytes: 64 << 20, budget: newBudget(4 << 20)}
		br.budget.held.Store(int64(c.taken - firstBuffer)) // by others
		most := 0
		r := httptest.NewRequest("POST", "/", &trickle{n: firstBuffer + 1, seen: func(sent int) {
			held := int(br.budget.held.Load()) - (c.taken - firstBuffer)
			if most = max(most, held); sent < firstBuffer && held > firstBuffer {
				t.Errorf("%d bytes are held when %d had arrived", held, sent)
			}
		}})
		r.ContentLength = declared
		b, err := br.read(httptest.NewRecorder(), r)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if most != c.most {
			t.Errorf("with %d bytes taken %d are held, want %d", c.taken, most, c.most)
		}
	}
}

func TestADeclaredBodyFitsABudgetOfItsSize(t *testing.T) {
	br := &bodyReader{maxBytes: 9 << 20, budget: newBudget(9 << 20)}
	mustRead(t, br, strings.Repeat("x", 9<<20)).Release()
}

// mustRead reads a body of declared length.
func mustRead(t *testing.T, br *bodyReader, content string) *body {
	b, err := br.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(content)))
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	return b
}

func TestTheBudgetRefusesWhatItCannotHold(t *testing.T) {
	br := &bodyReader{maxBytes: 1 << 20, budget: newBudget(3 * 4096)}
	read := func() (*body, error) {
		return br.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("{}")))
	}
	held := []*body{mustRead(t, br, "{}"), mustRead(t, br, "{}"), mustRead(t, br, "{}")}
	if _, err := read(); err != errBudget {
		t.Fatalf("a fourth: %v", err)
	}
	held[0].Release()
	held[0].Release()
	held[0] = mustRead(t, br, "{}")
	if _, err := read(); err != errBudget {
		t.Fatalf("a fourth after two releases of one: %v", err)
	}

	br.budget.limit.Store(4096)
	held[0].Release()
	held[1].Release()
	if _, err := read(); err != errBudget {
		t.Fatalf("under a lowered limit: %v", err)
	}
	held[2].Release()
	mustRead(t, br, "{}").Release()
	if held := br.budget.held.Load(); held != 0 {
		t.Fatalf("%d bytes still held", held)
	}
}

func TestABodyThatOutgrowsTheBudgetGivesAllBack(t *testing.T) {
	br := &bodyReader{maxBytes: 1 << 20, budget: newBudget(100_000)}
	r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 200_000)))
	if _, err := br.read(httptest.NewRecorder(), r); err != errBudget {
		t.Fatal(err)
	}
	if held := br.budget.held.Load(); held != 0 {
		t.Fatalf("%d bytes still held", held)
	}
}

func TestTheMemoryWaitsForTheReleaseAndForEveryReader(t *testing.T) {
	br := &bodyReader{maxBytes: 100, budget: newBudget(4096)}
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {1, 2, 0}} {
		b := mustRead(t, br, "content")
		first, second := b.NewReader(), b.NewReader()
		ends := []func(){b.Release, func() { _ = first.Close() }, func() { _ = second.Close() }}
		for i, end := range order {
			if held := br.budget.held.Load(); held != 4096 {
				t.Fatalf("order %v: %d bytes held before step %d", order, held, i)
			}
			ends[end]()
			ends[end]() // the second call does nothing
		}
		if held := br.budget.held.Load(); held != 0 {
			t.Fatalf("order %v: %d bytes still held", order, held)
		}
	}
}

func TestAClosedReaderReadsNothing(t *testing.T) {
	br := &bodyReader{maxBytes: 100, budget: newBudget(4096)}
	b := mustRead(t, br, "content")
	defer b.Release()
	r := b.NewReader()
	_ = r.Close()
	if n, err := r.Read(make([]byte, 8)); n != 0 || err != http.ErrBodyReadAfterClose {
		t.Fatal(n, err)
	}
}

func TestAReaderOfAReleasedBodyIsABug(t *testing.T) {
	br := &bodyReader{maxBytes: 100, budget: newBudget(4096)}
	b := mustRead(t, br, "content")
	open := b.NewReader()
	defer open.Close()
	b.Release()
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	b.NewReader()
}

func TestConcurrentReadersEachReadTheWholeBody(t *testing.T) {
	br := &bodyReader{maxBytes: 1 << 20, budget: newBudget(1 << 20)}
	content := strings.Repeat("0123456789", 10_000)
	b := mustRead(t, br, content)
	var readers sync.WaitGroup
	for range 8 {
		r := b.NewReader()
		readers.Go(func() {
			defer r.Close()
			if got, err := io.ReadAll(r); err != nil || string(got) != content {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	b.Release() // open readers keep the memory
	readers.Wait()
	if held := br.budget.held.Load(); held != 0 {
		t.Fatalf("%d bytes still held", held)
	}
}

// Every body has content of its own, so that a buffer which serves two bodies at once is seen. Some uploads break off,
// some exceed the budget, some readers are closed while they read.
func TestTheBudgetIsConservedInAStorm(t *testing.T) {
	const limit = 1 << 20
	br := &bodyReader{maxBytes: 300_000, budget: newBudget(limit)}
	var storm sync.WaitGroup
	for worker := range 32 {
		storm.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for round := range 40 {
				content := bytes.Repeat(fmt.Appendf(nil, "%d/%d ", worker, round), random.IntN(20_000))
				upload := io.MultiReader(bytes.NewReader(content))
				if random.IntN(4) == 0 {
					upload = io.MultiReader(upload, iotest.ErrReader(io.ErrUnexpectedEOF))
				}
				r := httptest.NewRequest("POST", "/", upload)
				b, err := br.read(httptest.NewRecorder(), r)
				if held := br.budget.held.Load(); held > limit {
					t.Errorf("%d bytes held", held)
				}
				if err != nil {
					continue
				}
				use(t, b, content, &storm, random.IntN(3))
				b.Release()
			}
		})
	}
	storm.Wait()
	if held := br.budget.held.Load(); held != 0 {
		t.Fatalf("%d bytes still held", held)
	}
}

// use reads b with some readers that may outlive it, as a transport does.
func use(t *testing.T, b *body, content []byte, running *sync.WaitGroup, readers int) {
	for range readers {
		r := b.NewReader()
		running.Go(func() {
			defer r.Close()
			if got, err := io.ReadAll(r); err == nil && !slices.Equal(got, content) {
				t.Error("a reader saw bytes of another body")
			} else if err != nil && err != http.ErrBodyReadAfterClose {
				t.Error(err)
			}
		})
		if readers == 2 {
			running.Go(func() { _ = r.Close() })
		}
	}
}

func TestAReplacedModelIsSentAndNoOtherByteChanges(t *testing.T) {
	br := &bodyReader{maxBytes: 1 << 20, budget: newBudget(1 << 20)}
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.String().Draw(rt, "name")
		before := rapid.SampledFrom([]string{`{`, ` { "a" : [1, "model"],`, `{"mod\u0065ls":{"model":1},`}).Draw(rt, "before") +
			rapid.SampledFrom([]string{`"model":`, "\"mod\\u0065l\" :\n"}).Draw(rt, "key")
		value := rapid.SampledFrom([]string{`null`, `""`, `"a"`, `"\"\\\u00e9"`}).Draw(rt, "value")
		after := rapid.SampledFrom([]string{`}`, ` , "stream":true}` + "\n", `,"messages":[{"content":"model"}]}`}).Draw(rt, "after")

		b := mustRead(t, br, before+value+after)
		defer b.Release()
		p, err := openai.ScanBody(http.Header{}, b.Bytes(), nil)
		if err != nil {
			rt.Fatal(err)
		}
		b.replace(p.ModelAt, p.EncodeModel(name))
		if string(b.Bytes()) != before+value+after {
			rt.Fatalf("Bytes changed: %s", b.Bytes())
		}
		r := b.NewReader()
		defer r.Close()
		sent, err := io.ReadAll(iotest.OneByteReader(r))
		if err != nil || int64(len(sent)) != b.Size() {
			rt.Fatalf("%d bytes sent of %d: %v", len(sent), b.Size(), err)
		}
		again, err := openai.ScanBody(http.Header{}, sent, nil)
		if err != nil || string(again.Model) != name {
			rt.Fatalf("sent %s: model %q, %v", sent, again.Model, err)
		}
		if string(sent[:again.ModelAt.Start]) != before || string(sent[again.ModelAt.End:]) != after {
			rt.Fatalf("sent %s", sent)
		}
	})
}
