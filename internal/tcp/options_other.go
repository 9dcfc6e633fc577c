//go:build !linux

package tcp

import "time"

// setUserTimeout does nothing: only Linux has the option in this form.
func setUserTimeout(uintptr, time.Duration) error { return nil }
