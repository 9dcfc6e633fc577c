package llmserver

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/http1"
	"berth/internal/tcp"
)

func dialError(call string, cause error, to net.Addr) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: os.NewSyscallError(call, cause)}
}

func TestReplicaExhaustionIsDistinguishedFromUnreachable(t *testing.T) {
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	for _, row := range []struct {
		err  error
		want bool
	}{
		{dialError("socket", syscall.EMFILE, loopback), true},
		{dialError("socket", syscall.ENFILE, loopback), true},
		{dialError("socket", syscall.ENOBUFS, loopback), true},
		{dialError("connect", syscall.ENOMEM, loopback), true},
		{dialError("connect", syscall.EADDRNOTAVAIL, loopback), true},
		{&net.DNSError{Err: "dial udp 127.0.0.1:53: socket: too many open files", Name: "replica"}, true},
		{&net.DNSError{Err: "no such host", Name: "replica"}, false},
		{dialError("connect", syscall.ECONNREFUSED, loopback), false},
		{dialError("connect", syscall.EHOSTUNREACH, loopback), false},
		{dialError("connect", syscall.EADDRNOTAVAIL, &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 9}), false}, // without a zone it has no source
	} {
		if got := tcp.Exhausted(row.err); got != row.want {
			t.Errorf("Exhausted(%v) = %t, want %t", row.err, got, row.want)
		}
		err := backendError(&http1.Error{Err: row.err})
		if errors.Is(err, ErrExhausted) != row.want || errors.Is(err, ErrNoConnection) == row.want {
			t.Errorf("the failure of %v is %v", row.err, err)
		}
	}
}

func TestReplicaStaysUpDuringOwnExhaustion(t *testing.T) {
	var out, asked atomic.Int32
	probe := func(context.Context) error {
		asked.Add(1)
		if out.Load() > 0 {
			return ErrExhausted
		}
		return nil
	}
	withProbedReplica(t, probe, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
		var reported atomic.Int32
		r.events.Exhausted = func(error) { reported.Add(1) }
		synctest.Wait()
		out.Store(1)
		for range 2 * minFailures {
			sendRequest(t, r, fake, ErrExhausted)
		}
		fake.faults = func(op string) error {
			if op == "reserve" {
				return ErrExhausted
			}
			return nil
		}
		if err := reserveUnconfirmed(t, r).Confirm(t.Context(), 0); !errors.Is(err, ErrExhausted) {
			t.Errorf("Confirm = %v", err)
		}
		synctest.Wait() // for the cancel by name
		fake.faults = nil
		time.Sleep(time.Minute) // dozens of probes
		synctest.Wait()
		if n := r.outcomes.failures(); !r.Available() || changes.Load() != 0 || n != 0 {
			t.Errorf("available %t after %d changes and %d failures; reason %q", r.Available(), changes.Load(), n, r.DownReason())
		}
		if n := reported.Load(); n < 2*minFailures+1+maxProbeFailures {
			t.Errorf("%d failures were reported", n)
		}
		out.Store(0)
		before := asked.Load()
		time.Sleep(maxProbeRetry)
		if asked.Load() == before {
			t.Error("the replica is not probed soon after")
		}
	})
}

// A replica that is down stays down while it cannot be probed.
func TestReplicaStaysDownDuringOwnExhaustion(t *testing.T) {
	probe := func(context.Context) error { return ErrExhausted }
	withProbedReplica(t, probe, func(r *Replica, fake *fakeBackend, _ *atomic.Int32) {
		sendRequest(t, r, fake, ErrNoConnection)
		time.Sleep(time.Minute)
		if r.Available() {
			t.Error("it is available")
		}
	})
}

// reserveUnconfirmed returns a slot that the gate has granted and the backend does not know yet.
func reserveUnconfirmed(t *testing.T, r *Replica) *Slot {
	t.Helper()
	s, err := r.TryReserve("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
