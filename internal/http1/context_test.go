package http1

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// contextParents are the ways in which a Context can hang below a parent that cancel ends.
var contextParents = map[string]func() (parent context.Context, cancel func()){
	"a Context": func() (context.Context, func()) {
		p := new(Context)
		p.Start(context.Background())
		return p, func() { p.Cancel(context.Canceled) }
	},
	"a Context with a value": func() (context.Context, func()) {
		p := new(Context)
		p.Start(context.Background())
		return context.WithValue(p, contextKey{}, 1), func() { p.Cancel(context.Canceled) }
	},
	"a standard context": func() (context.Context, func()) {
		p, cancel := context.WithCancel(context.Background())
		return p, cancel
	},
}

type contextKey struct{}

func TestContextEndsWithItsParent(t *testing.T) {
	for name, newParent := range contextParents {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := newParent()
				var c, late Context
				c.Start(parent)
				var called atomic.Int32
				defer c.AfterFunc(func() { called.Add(1) })()
				watching := listener{f: func() { called.Add(1) }}
				watching.watch(&c)
				watchingParent := listener{f: func() { called.Add(1) }}
				watchingParent.watch(parent)
				stopped := listener{f: func() { t.Error("called after stop") }}
				stopped.watch(parent)
				if !stopped.stop(parent) {
					t.Error("stop is late")
				}
				derived, stop := context.WithTimeout(&c, time.Hour)
				defer stop()
				synctest.Wait()
				if c.Err() != nil || context.Cause(&c) != nil || called.Load() != 0 {
					t.Fatalf("ended with %v before its parent", c.Err())
				}
				cancel()
				<-c.Done()
				<-derived.Done()
				late.Start(parent)
				synctest.Wait()
				for _, ctx := range []context.Context{&c, &late, derived} {
					if ctx.Err() != context.Canceled || context.Cause(ctx) != context.Canceled {
						t.Errorf("ended with %v, cause %v", ctx.Err(), context.Cause(ctx))
					}
				}
				if called.Load() != 3 || watching.stop(&c) || watchingParent.stop(parent) {
					t.Errorf("called %d functions; want 3", called.Load())
				}
			})
		})
	}
}

// The end of a child leaves the parent open and nothing in its list.
func TestContextCancelEndsTheContextAlone(t *testing.T) {
	cause := errors.New("too slow")
	for name, newParent := range contextParents {
		t.Run(name, func(t *testing.T) {
			parent, cancel := newParent()
			defer cancel()
			var c, sibling Context
			c.Start(parent)
			sibling.Start(parent)
			c.Cancel(cause)
			c.Cancel(context.Canceled)
			<-c.Done()
			if c.Err() != cause || context.Cause(&c) != cause {
				t.Errorf("ended with %v, cause %v", c.Err(), context.Cause(&c))
			}
			if parent.Err() != nil || sibling.Err() != nil {
				t.Errorf("the parent ended with %v, the sibling with %v", parent.Err(), sibling.Err())
			}
			sibling.Cancel(cause)
			if p, ok := parent.(*Context); ok && p.listeners != nil {
				t.Error("the parent keeps its children")
			}
		})
	}
}

func TestContextAfterFuncIsCalledOnceOrStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Context
		c.Start(t.Context())
		var calls [4]atomic.Int32
		var stops [4]func() bool
		for i := range stops {
			stops[i] = c.AfterFunc(func() { calls[i].Add(1) })
		}
		if !stops[1]() || stops[1]() || !stops[3]() {
			t.Error("stop is wrong before the end")
		}
		c.Cancel(context.Canceled)
		synctest.Wait()
		c.AfterFunc(func() { calls[3].Add(1) })
		synctest.Wait()
		if stops[0]() || stops[2]() {
			t.Error("stop is wrong after the end")
		}
		for i, want := range []int32{1, 0, 1, 1} {
			if n := calls[i].Load(); n != want {
				t.Errorf("function %d was called %d times; want %d", i, n, want)
			}
		}
	})
}

// Whatever ends first, each function is called or stopped, and no more than one of both.
func TestContextStorm(t *testing.T) {
	for range 2000 {
		var parent, c Context
		parent.Start(t.Context())
		c.Start(&parent)
		var called, stopped atomic.Int32
		var running sync.WaitGroup
		running.Add(2)
		stops := []func() bool{
			c.AfterFunc(func() { called.Add(1); running.Done() }),
			c.AfterFunc(func() { called.Add(1); running.Done() }),
		}
		for _, stop := range stops {
			go func() {
				if stop() {
					stopped.Add(1)
					running.Done()
				}
			}()
		}
		go parent.Cancel(context.Canceled)
		go c.Cancel(context.Canceled)
		go func() { <-c.Done() }()
		running.Wait()
		if called.Load()+stopped.Load() != 2 {
			t.Fatalf("%d called, %d stopped", called.Load(), stopped.Load())
		}
	}
}

func BenchmarkContext(b *testing.B) {
	root := context.WithValue(context.Background(), contextKey{}, 1)
	f := func() {}
	b.Run("http1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			request, attempt := new(Context), new(Context)
			request.Start(root)
			attempt.Start(request)
			l := &listener{f: f}
			l.watch(attempt)
			l.stop(attempt)
			attempt.Cancel(context.Canceled)
			request.Cancel(context.Canceled)
		}
	})
	b.Run("standard", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			request, end := context.WithCancel(root)
			attempt, abort := context.WithCancelCause(request)
			context.AfterFunc(attempt, f)()
			abort(nil)
			end()
		}
	})
}
