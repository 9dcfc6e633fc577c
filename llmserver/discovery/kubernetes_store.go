package discovery

import "k8s.io/client-go/tools/cache"

// listWatch prevents the streaming of lists, during which the Reflector's backoff ignores the end
// of its context.
type listWatch struct{ cache.ListWatch }

// IsWatchListSemanticsUnSupported is the method by which a client says so.
func (*listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// A notifyingStore calls changed after each change.
type notifyingStore struct {
	cache.Store
	changed func()
}

// Add implements cache.Store.
func (s *notifyingStore) Add(o any) error {
	defer s.changed()
	return s.Store.Add(o)
}

// Update implements cache.Store.
func (s *notifyingStore) Update(o any) error {
	defer s.changed()
	return s.Store.Update(o)
}

// Delete implements cache.Store.
func (s *notifyingStore) Delete(o any) error {
	defer s.changed()
	return s.Store.Delete(o)
}

// Replace implements cache.Store.
func (s *notifyingStore) Replace(all []any, version string) error {
	defer s.changed()
	return s.Store.Replace(all, version)
}
