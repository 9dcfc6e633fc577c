package http1

import (
	"context"
	"sync"
)

// A Context is a context.Context that ends when Cancel is called, or with its parent. It replaces
// context.WithCancelCause on the path of a request: it is a part of the value whose work it bounds,
// registers functions and children in a list in place of a map, and makes no channel unless Done is
// called.
//
//	open → ended   by the first Cancel, or by the end of the parent
//
// Start must be called first, once. A Context must not be copied. Any goroutine may call the other
// methods, at any time; none of them blocks.
type Context struct {
	context.Context          // the parent: deadline and values
	inParent        listener // of a parent that is a *Context

	mu        sync.Mutex    // guards the fields below; held for no callback
	err       error         // non-nil after the end
	done      chan struct{} // nil until Done is called
	listeners *listener     // to be called at the end; nil afterwards
	detach    func() bool   // unregisters from a parent that is no *Context; or nil
}

// A listener is a child, or a function of AfterFunc, in the list of its Context.
type listener struct {
	child  *Context
	f      func()
	next   *listener   // guarded by mu of the Context, which owns the list until its end
	detach func() bool // unregisters from a context that is no *Context; set by watch
}

// watch has f called in its own goroutine after the end of ctx, like context.AfterFunc. The memory
// is the listener's if ctx is a *Context. watch must be called once, before stop.
func (l *listener) watch(ctx context.Context) {
	if c, ok := ctx.(*Context); ok {
		c.add(l)
	} else {
		l.detach = context.AfterFunc(ctx, l.f)
	}
}

// stop reports whether it has prevented the call of f. ctx is that of watch. Only one goroutine may
// call stop.
func (l *listener) stop(ctx context.Context) bool {
	if c, ok := ctx.(*Context); ok {
		return c.remove(l)
	}
	return l.detach()
}

// Start opens c as a child of parent.
func (c *Context) Start(parent context.Context) {
	c.Context = parent
	switch p, ok := parent.(*Context); {
	case ok:
		c.inParent.child = c
		p.add(&c.inParent)
	case parent.Done() == nil: // never ends
	case parent.Err() != nil:
		c.Cancel(context.Cause(parent))
	default:
		detach := context.AfterFunc(parent, func() { c.Cancel(context.Cause(parent)) })
		c.mu.Lock() // the function may be running already
		c.detach = detach
		c.mu.Unlock()
	}
}

// Cancel ends c, and then all its children, and starts the functions of AfterFunc. err, which must
// not be nil, is what Err returns from now on. Further calls do nothing.
func (c *Context) Cancel(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	ended, detach := c.listeners, c.detach
	c.listeners = nil
	c.mu.Unlock()
	for l := ended; l != nil; l = l.next {
		l.notify(err)
	}
	if p, ok := c.Context.(*Context); ok {
		p.remove(&c.inParent)
	} else if detach != nil {
		detach()
	}
}

func (l *listener) notify(err error) {
	if l.child != nil {
		l.child.Cancel(err)
	} else {
		go l.f()
	}
}

// Done returns a channel that is closed at the end.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err returns nil until the end, and then the error of Cancel, or the cause of the parent's end.
// context.Cause returns the same error, which is not context.Canceled but the reason. The exception is
// a parent of another type with a cause of its own.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc calls f in its own goroutine after the end, unless stop was called before. Stop reports
// whether it has prevented the call. context.AfterFunc and derived contexts use this method.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	l := &listener{f: f}
	c.add(l)
	return func() bool { return c.remove(l) }
}

// add appends l to the list, or notifies it now if c has ended.
func (c *Context) add(l *listener) {
	c.mu.Lock()
	err := c.err
	if err == nil {
		l.next, c.listeners = c.listeners, l
	}
	c.mu.Unlock()
	if err != nil {
		l.notify(err)
	}
}

// remove removes l from the list and reports whether it was there. The list is short: one child,
// and what waits at present.
func (c *Context) remove(l *listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := &c.listeners; *at != nil; at = &(*at).next {
		if *at == l {
			*at = l.next
			return true
		}
	}
	return false
}
