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

// newConnPair returns both ends of a loopback connection, not wrapped.
func newConnPair(t testing.TB) (a, b net.Conn) {
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

func TestConnConformsToNetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := newConnPair(t)
		return Wrap(a), Wrap(b), func() { a.Close(); b.Close() }, nil
	})
}

func TestConnTransfersEverySize(t *testing.T) {
	for _, size := range []int{1, 4 << 10, 64 << 10, 64<<10 + 1, 512 << 10} {
		a, b := newConnPair(t)
		a.(*net.TCPConn).SetWriteBuffer(4 << 10) // forces partial writes
		a, b = Wrap(a), Wrap(b)
		sent := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		writeErr := make(chan error, 1)
		go func() {
			n, err := a.Write(sent)
			if n != len(sent) {
				err = errors.Join(err, fmt.Errorf("%d bytes written", n))
			}
			writeErr <- errors.Join(err, a.(interface{ CloseWrite() error }).CloseWrite())
		}()
		got, err := io.ReadAll(b)
		if err := errors.Join(err, <-writeErr); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes sent, %d received, error %v", size, len(got), err)
		}
	}
}

func TestConnErrorsMatchPackageNet(t *testing.T) {
	for name, row := range map[string]struct {
		provoke func(near, far net.Conn) error
		want    error
	}{
		"end of stream": {func(near, far net.Conn) error {
			far.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, io.EOF},
		"reset during a read": {func(near, far net.Conn) error {
			far.(interface{ SetLinger(int) error }).SetLinger(0)
			far.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, syscall.ECONNRESET},
		"reset before a write": {func(near, far net.Conn) error {
			far.(interface{ SetLinger(int) error }).SetLinger(0)
			far.Close()
			near.Read(make([]byte, 8))
			_, err := near.Write([]byte("x"))
			return err
		}, syscall.EPIPE},
		"read after the deadline": {func(near, far net.Conn) error {
			near.SetReadDeadline(time.Unix(1, 0))
			_, err := near.Read(make([]byte, 8))
			return err
		}, os.ErrDeadlineExceeded},
		"write after the deadline": {func(near, far net.Conn) error {
			near.SetWriteDeadline(time.Unix(1, 0))
			_, err := near.Write([]byte("x"))
			return err
		}, os.ErrDeadlineExceeded},
		"read of a closed connection": {func(near, far net.Conn) error {
			near.Close()
			_, err := near.Read(make([]byte, 8))
			return err
		}, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newConnPair(t)
			want := row.provoke(a, b)
			c, d := newConnPair(t)
			got := row.provoke(Wrap(c), d)
			if !errors.Is(got, row.want) || !errors.Is(want, row.want) {
				t.Errorf("got %v, package net returns %v", got, want)
			}
			addresses := strings.NewReplacer(a.LocalAddr().String(), "a", a.RemoteAddr().String(), "b",
				c.LocalAddr().String(), "a", c.RemoteAddr().String(), "b")
			if g, w := addresses.Replace(got.Error()), addresses.Replace(want.Error()); g != w {
				t.Errorf("got %q, package net returns %q", g, w)
			}
		})
	}
}

func TestConnWriteTimeoutCountsWrittenBytes(t *testing.T) {
	a, b := newConnPair(t)
	near := Wrap(a)
	near.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	var written int
	for {
		n, err := near.Write(make([]byte, 64<<10))
		written += n
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		break
	}
	near.Close()
	if got, err := io.Copy(io.Discard, b); err != nil || got != int64(written) {
		t.Errorf("%d bytes written, %d read, error %v", written, got, err)
	}
}

func TestConnDoesNotAllocate(t *testing.T) {
	a, b := newConnPair(t)
	near, far := Wrap(a), Wrap(b)
	p := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		near.Write(p)
		io.ReadFull(far, p)
	}); n > 0 {
		t.Errorf("%v allocations per write and read, want 0", n)
	}
}

func BenchmarkConnPingPong(b *testing.B) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"net": func(c net.Conn) net.Conn { return c },
		"tcp": Wrap,
	} {
		b.Run(name, func(b *testing.B) {
			near, far := newConnPair(b)
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
