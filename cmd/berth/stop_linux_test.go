package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// openTerminal returns both sides of a new pseudo-terminal.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	var unlock, number int32
	for request, value := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, screen.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Skipf("no pseudo-terminal: %v", errno)
		}
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

func TestStopPrintsWhatIsLeftOnATerminal(t *testing.T) {
	screen, terminal := openTerminal(t)
	left := func() (int, int) { return 12, 3 }
	printRemaining(terminal, left)
	text := make([]byte, 1000)
	n, err := screen.Read(text)
	for !strings.Contains(string(text[:n]), "once") && err == nil {
		var more int
		more, err = screen.Read(text[n:])
		n += more
	}
	if got := string(text[:n]); !strings.Contains(got, "12 running and 3 queued requests") || !strings.Contains(got, "^C again to end at once") {
		t.Errorf("the terminal has %q %v", got, err)
	}
}

func TestStopPrintsNothingToAFileOrPipe(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var buffer strings.Builder
	left := func() (int, int) { return 12, 3 }
	printRemaining(file, left)
	printRemaining(&buffer, left)
	if info, err := file.Stat(); err != nil || info.Size() != 0 || buffer.Len() != 0 {
		t.Errorf("printed %d bytes to a file and %q", info.Size(), buffer.String())
	}
}
