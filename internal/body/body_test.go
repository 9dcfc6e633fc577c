package body

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
)

// trickle sends n bytes in small pieces and calls seen before each with the number sent so far.
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

func TestReadHoldsMemoryForArrivedBytesOnly(t *testing.T) {
	o := &Options{MaxBytes: 64 << 20, Budget: NewBudget(1 << 30)}
	for _, declared := range []int64{64 << 20, -1} {
		r := httptest.NewRequest("POST", "/", &trickle{n: 9 << 20, seen: func(sent int) {
			if held := o.Budget.Held(); held > int64(max(firstBuffer, 2*sent)) {
				t.Fatalf("%d bytes are held when %d had arrived", held, sent)
			}
		}})
		r.ContentLength = declared
		b, err := Read(httptest.NewRecorder(), r, o)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
}

func TestReadPreallocatesModestLengthsWhileHalfOfTheBudgetIsFree(t *testing.T) {
	const declared = maxPrealloc - 5000
	for _, c := range []struct{ taken, most int }{{2 << 20, maxPrealloc}, {2<<20 + 1, 2 * firstBuffer}} {
		o := &Options{MaxBytes: 64 << 20, Budget: NewBudget(4 << 20)}
		o.Budget.held.Store(int64(c.taken - firstBuffer)) // by others
		most := 0
		r := httptest.NewRequest("POST", "/", &trickle{n: firstBuffer + 1, seen: func(sent int) {
			held := int(o.Budget.Held()) - (c.taken - firstBuffer)
			if most = max(most, held); sent < firstBuffer && held > firstBuffer {
				t.Errorf("%d bytes are held when %d had arrived", held, sent)
			}
		}})
		r.ContentLength = declared
		b, err := Read(httptest.NewRecorder(), r, o)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if most != c.most {
			t.Errorf("with %d bytes taken %d are held, want %d", c.taken, most, c.most)
		}
	}
}

func TestReadFitsADeclaredBodyIntoABudgetOfItsSize(t *testing.T) {
	o := &Options{MaxBytes: 9 << 20, Budget: NewBudget(9 << 20)}
	mustRead(t, o, strings.Repeat("x", 9<<20)).Release()
}

// mustRead reads a body of declared length.
func mustRead(t *testing.T, o *Options, content string) *Body {
	b, err := Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(content)), o)
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	return b
}

func TestBudgetRefusesBodiesThatDoNotFit(t *testing.T) {
	o := &Options{MaxBytes: 1 << 20, Budget: NewBudget(3 * 4096)}
	read := func() (*Body, error) {
		return Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("{}")), o)
	}
	held := []*Body{mustRead(t, o, "{}"), mustRead(t, o, "{}"), mustRead(t, o, "{}")}
	if _, err := read(); err != ErrOverBudget {
		t.Fatalf("a fourth: %v", err)
	}
	held[0].Release()
	held[0].Release()
	held[0] = mustRead(t, o, "{}")
	if _, err := read(); err != ErrOverBudget {
		t.Fatalf("a fourth after two releases of one: %v", err)
	}

	o.Budget.SetLimit(4096)
	held[0].Release()
	held[1].Release()
	if _, err := read(); err != ErrOverBudget {
		t.Fatalf("under a lowered limit: %v", err)
	}
	held[2].Release()
	mustRead(t, o, "{}").Release()
	if held := o.Budget.Held(); held != 0 {
		t.Fatalf("%d bytes are still held", held)
	}
}

func TestBudgetIsReturnedByABodyThatOutgrowsIt(t *testing.T) {
	o := &Options{MaxBytes: 1 << 20, Budget: NewBudget(100_000)}
	r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 200_000)))
	if _, err := Read(httptest.NewRecorder(), r, o); err != ErrOverBudget {
		t.Fatal(err)
	}
	if held := o.Budget.Held(); held != 0 {
		t.Fatalf("%d bytes are still held", held)
	}
}

func TestBodyKeepsItsMemoryUntilReleasedAndAllReadersClosed(t *testing.T) {
	o := &Options{MaxBytes: 100, Budget: NewBudget(4096)}
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {1, 2, 0}} {
		b := mustRead(t, o, "content")
		first, second := b.NewReader(), b.NewReader()
		ends := []func(){b.Release, func() { _ = first.Close() }, func() { _ = second.Close() }}
		for i, end := range order {
			if held := o.Budget.Held(); held != 4096 {
				t.Fatalf("order %v: %d bytes are held before step %d", order, held, i)
			}
			ends[end]()
			ends[end]() // the second call does nothing
		}
		if held := o.Budget.Held(); held != 0 {
			t.Fatalf("order %v: %d bytes are still held", order, held)
		}
	}
}

func TestReaderReadsNothingAfterClose(t *testing.T) {
	o := &Options{MaxBytes: 100, Budget: NewBudget(4096)}
	b := mustRead(t, o, "content")
	defer b.Release()
	r := b.NewReader()
	_ = r.Close()
	if n, err := r.Read(make([]byte, 8)); n != 0 || err != http.ErrBodyReadAfterClose {
		t.Fatal(n, err)
	}
}

func TestBodyPanicsOnAReaderAfterRelease(t *testing.T) {
	o := &Options{MaxBytes: 100, Budget: NewBudget(4096)}
	b := mustRead(t, o, "content")
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

func TestReaderReadsTheWholeBodyBesideOthers(t *testing.T) {
	o := &Options{MaxBytes: 1 << 20, Budget: NewBudget(1 << 20)}
	content := strings.Repeat("0123456789", 10_000)
	b := mustRead(t, o, content)
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
	if held := o.Budget.Held(); held != 0 {
		t.Fatalf("%d bytes are still held", held)
	}
}

// Every body has unique content, so that a buffer in use by two bodies is detected. Some uploads
// are aborted, some exceed the budget, some readers are closed during a read.
func TestBudgetIsConservedInAStorm(t *testing.T) {
	const limit = 1 << 20
	o := &Options{MaxBytes: 300_000, Budget: NewBudget(limit)}
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
				b, err := Read(httptest.NewRecorder(), r, o)
				if held := o.Budget.Held(); held > limit {
					t.Errorf("%d bytes are held", held)
				}
				if err != nil {
					continue
				}
				readInBackground(t, b, content, &storm, random.IntN(3))
				b.Release()
			}
		})
	}
	storm.Wait()
	if held := o.Budget.Held(); held != 0 {
		t.Fatalf("%d bytes are still held", held)
	}
}

// readInBackground reads b with some readers that may outlive it, as a transport does.
func readInBackground(t *testing.T, b *Body, content []byte, running *sync.WaitGroup, readers int) {
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

func TestReaderSendsTheReplacementAndNoOtherByteChanges(t *testing.T) {
	o := &Options{MaxBytes: 1 << 20, Budget: NewBudget(1 << 20)}
	rapid.Check(t, func(rt *rapid.T) {
		before, old, after, value := rapid.String().Draw(rt, "before"), rapid.String().Draw(rt, "old"), rapid.String().Draw(rt, "after"), rapid.String().Draw(rt, "value")
		b := mustRead(t, o, before+old+after)
		defer b.Release()
		earlier := b.NewReader()
		defer earlier.Close()
		b.Replace(len(before), len(before+old), []byte(value))
		later, sender := b.NewReader(), b.NewReader()
		defer later.Close()
		defer sender.Close()
		var sent strings.Builder
		if err := sender.SendTo(&sent); err != nil || sent.String() != before+value+after || b.Size() != int64(sent.Len()) {
			rt.Fatalf("%q sent, size %d: %v", sent.String(), b.Size(), err)
		}
		if got, err := io.ReadAll(iotest.OneByteReader(later)); err != nil || string(got) != before+value+after {
			rt.Fatalf("%q read: %v", got, err)
		}
		if got, err := io.ReadAll(earlier); err != nil || string(got) != before+old+after || string(b.Bytes()) != before+old+after {
			rt.Fatalf("%q read by an earlier reader, %q held: %v", got, b.Bytes(), err)
		}
	})
}

func TestReaderSendsOnlyUnreadBytes(t *testing.T) {
	b := mustRead(t, &Options{MaxBytes: 100, Budget: NewBudget(4096)}, "content")
	defer b.Release()
	r := b.NewReader()
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	if err := r.SendTo(&rest); err != nil || rest.String() != "tent" {
		t.Errorf("%q, %v", rest.String(), err)
	}
	if n, err := r.Read(make([]byte, 3)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	_ = r.Close()
	if err := r.SendTo(&rest); err != http.ErrBodyReadAfterClose {
		t.Error(err)
	}
}

func TestReadHoldsNoMoreThanItsBufferForAnySize(t *testing.T) {
	o := &Options{MaxBytes: 1 << 20, Budget: NewBudget(1 << 30)}
	for _, n := range []int{0, 1, firstBuffer - 1, firstBuffer, firstBuffer + 1, 3 * firstBuffer, 1 << 20} {
		for _, declared := range []bool{true, false} {
			want := bytes.Repeat([]byte("berth"), n/5+1)[:n]
			r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(bytes.NewReader(want)))
			if r.ContentLength = -1; declared {
				r.ContentLength = int64(n)
			}
			b, err := Read(httptest.NewRecorder(), r, o)
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if got := b.Bytes(); !bytes.Equal(got, want) {
				t.Errorf("%d bytes were read as %d", n, len(got))
			}
			// A declared length is rounded up to a power of two.
			if held := o.Budget.Held(); held != int64(cap(b.data)) || declared && n > 0 && held > int64(max(2*n-1, firstBuffer)) {
				t.Errorf("for %d bytes %d are held, in a buffer of %d", n, held, cap(b.data))
			}
			b.Release()
			if b.Release(); o.Budget.Held() != 0 {
				t.Fatalf("%d bytes are still held", o.Budget.Held())
			}
		}
	}
}

func TestReadHoldsNothingForADeclaredLengthAlone(t *testing.T) {
	o := &Options{MaxBytes: 1 << 40, Budget: NewBudget(1 << 20)}
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(strings.NewReader("little")))
	r.ContentLength = 1 << 39
	b, err := Read(httptest.NewRecorder(), r, o)
	if err != nil || o.Budget.Held() != firstBuffer {
		t.Fatalf("%v, %d bytes held", err, o.Budget.Held())
	}
	b.Release()
}
