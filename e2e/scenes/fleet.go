package scenes

import (
	"fmt"
	"time"
)

// fleetSize is the number of engines of a scene.
const fleetSize = 4

// A Fleet is the engines of one scene.
type Fleet struct {
	fault   Fault
	members []*member
}

// member is an engine of a fleet.
type member struct {
	name, url string
	sent      *arrivals // requests sent to the engine
	worked    *arrivals // requests that the engine works on; differs from sent while it is stopped
	engine    interface {
		Begin(Fault) error
		End() error
		Close()
	}
	tap *tap // nil unless the engine is going to be stopped
}

// StartFleet starts the engines for a scene. Only one Run may use a fleet.
func StartFleet(f Fault) (*Fleet, error) {
	fleet := &Fleet{fault: f}
	for i := range fleetSize {
		m, err := startMember(fmt.Sprintf("engine-%d", i+1), f)
		if err != nil {
			fleet.Close()
			return nil, err
		}
		fleet.members = append(fleet.members, m)
	}
	return fleet, nil
}

func startMember(name string, f Fault) (*member, error) {
	if !f.needsProcess() {
		e, err := StartEngine(name)
		if err != nil {
			return nil, err
		}
		return &member{name: name, url: e.URL(), sent: e.log, worked: e.log, engine: e}, nil
	}
	p, err := startProcess(name)
	if err != nil {
		return nil, err
	}
	m := &member{name: name, url: "http://" + p.address, sent: p.log, worked: p.log, engine: p}
	if f == Stopped {
		if m.tap, err = startTap(p.address); err != nil {
			p.Close()
			return nil, err
		}
		m.url, m.sent = "http://"+m.tap.listener.Addr().String(), m.tap.log
	}
	return m, nil
}

// URLs returns the base URLs of the engines.
func (f *Fleet) URLs() (urls []string) {
	for _, m := range f.members {
		urls = append(urls, m.url)
	}
	return urls
}

// Close ends all engines.
func (f *Fleet) Close() {
	for _, m := range f.members {
		m.engine.Close()
		if m.tap != nil {
			m.tap.close()
		}
	}
}

// busiest returns the engine that got most requests.
func (f *Fleet) busiest() *member {
	best := f.members[0]
	for _, m := range f.members[1:] {
		if len(m.sent.list()) > len(best.sent.list()) {
			best = m
		}
	}
	return best
}

// begun returns the number of streams that the engine worked on when a fault began, which was
// between two times.
func (m *member) begun(before, after time.Time) (n int) {
	for _, a := range m.worked.list() {
		if a.stream && !a.at.After(after) && (a.ended.IsZero() || !a.ended.Before(before)) {
			n++
		}
	}
	return n
}
