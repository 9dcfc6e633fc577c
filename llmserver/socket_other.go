//go:build !linux

package llmserver

import "time"

// setPeerTimeout does nothing: only Linux has the option in this form.
func setPeerTimeout(uintptr, time.Duration) error { return nil }
