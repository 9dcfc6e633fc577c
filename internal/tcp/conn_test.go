package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a connection, both ends as package net made them.
func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestAConnKeepsThePromisesOfPackageNet(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := pair(t)
		return Wrap(a), Wrap(b), func() { a.Close(); b.Close() }, nil
	})
}

func TestMuchPassesWholeAtEverySize(t *testing.T) {
	for _, size := range []int{1, 4 << 10, 64 << 10, 64<<10 + 1, 512 << 10} {
		a, b := pair(t)
		a.(*net.TCPConn).SetWriteBuffer(4 << 10) // a write is done in parts
		a, b = Wrap(a), Wrap(b)
		sent := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		wrote := make(chan error, 1)
		go func() {
			n, err := a.Write(sent)
			if n != len(sent) {
				err = errors.Join(err, fmt.Errorf("%d bytes written", n))
			}
			wrote <- errors.Join(err, a.(interface{ CloseWrite() error }).CloseWrite())
		}()
		got, err := io.ReadAll(b)
		if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("of %d bytes %d came, %v", size, len(got), err)
		}
	}
}

func TestErrorsAreThoseOfPackageNet(t *testing.T) {
	for name, fail := range map[string]struct {
		of func(near, far net.Conn) error
		is error
	}{
		"the end": {func(near, far net.Conn) error {
			far.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, io.EOF},
		"a reset while reading": {func(near, far net.Conn) error {
			far.(interface{ SetLinger(int) error }).SetLinger(0)
			far.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, syscall.ECONNRESET},
		"a reset before writing": {func(near, far net.Conn) error {
			far.(interface{ SetLinger(int) error }).SetLinger(0)
			far.Close()
			near.Read(make([]byte, 8))
			_, err := near.Write([]byte("x"))
			return err
		}, syscall.EPIPE},
		"a read past its deadline": {func(near, far net.Conn) error {
			near.SetReadDeadline(time.Unix(1, 0))
			_, err := near.Read(make([]byte, 8))
			return err
		}, os.ErrDeadlineExceeded},
		"a write past its deadline": {func(near, far net.Conn) error {
			near.SetWriteDeadline(time.Unix(1, 0))
			_, err := near.Write([]byte("x"))
			return err
		}, os.ErrDeadlineExceeded},
		"a read of what is closed": {func(near, far net.Conn) error {
			near.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			theirs := fail.of(a, b)
			c, d := pair(t)
			ours := fail.of(Wrap(c), d)
			if !errors.Is(ours, fail.is) || !errors.Is(theirs, fail.is) {
				t.Errorf("got %v, package net %v", ours, theirs)
			}
			known := strings.NewReplacer(a.LocalAddr().String(), "a", a.RemoteAddr().String(), "b",
				c.LocalAddr().String(), "a", c.RemoteAddr().String(), "b")
			if o, p := known.Replace(ours.Error()), known.Replace(theirs.Error()); o != p {
				t.Errorf("got %q, package net %q", o, p)
			}
		})
	}
}

func TestAWriteThatHangsTellsWhatItWrote(t *testing.T) {
	a, b := pair(t)
	near := Wrap(a)
	near.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	var wrote int
	for {
		n, err := near.Write(make([]byte, 64<<10))
		wrote += n
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		break
	}
	near.Close()
	if got, err := io.Copy(io.Discard, b); err != nil || got != int64(wrote) {
		t.Errorf("%d bytes were written and %d read, %v", wrote, got, err)
	}
}

func TestNothingIsAllocatedPerCall(t *testing.T) {
	a, b := pair(t)
	near, far := Wrap(a), Wrap(b)
	p := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		near.Write(p)
		io.ReadFull(far, p)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPingPong(b *testing.B) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"net":    func(c net.Conn) net.Conn { return c },
		"socket": Wrap,
	} {
		b.Run(name, func(b *testing.B) {
			near, far := pair(b)
			near, far = wrap(near), wrap(far)
			go io.Copy(struct{ io.Writer }{far}, struct{ io.Reader }{far})
			p := make([]byte, 300)
			for b.Loop() {
				near.Write(p)
				if _, err := io.ReadFull(near, p); err != nil {
					b.Fatal(err)
				}
			}
			near.Close()
		})
	}
}
