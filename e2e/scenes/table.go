package scenes

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// A Column is the results of one router with one policy, by fault.
type Column struct {
	Title   string
	Results map[Fault]Result
}

// Table returns the results as a Markdown table with a row per fault, without the faults that no
// column has. Each cell has the failed requests that were not streams, the failed streams with
// those in progress when the fault began in brackets, and the seconds until the engine was out of
// use and used again. Cells that miss a goal are bold.
func Table(columns []Column) string {
	var b strings.Builder
	b.WriteString("| fault |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.Title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, fault := range All {
		cells, measured := "", false
		for _, c := range columns {
			r, ok := c.Results[fault]
			measured = measured || ok
			if ok {
				cells += " " + r.cell() + " |"
			} else {
				cells += " |"
			}
		}
		if measured {
			fmt.Fprintf(&b, "| %s |%s\n", fault, cells)
		}
	}
	return b.String()
}

// cell returns the result as a cell of the table.
func (r Result) cell() string {
	text := fmt.Sprintf("%d · %d (%d) · ", r.FailedRequests, r.FailedStreams, r.BegunStreams)
	if r.Fault == Slow {
		text += fmt.Sprintf("%.0f %% of requests", 100*r.Share)
	} else {
		text += seconds(r.Out) + " · " + seconds(r.Back)
	}
	if len(r.Missed(1)) > 0 {
		return "**" + text + "**"
	}
	return text
}

func seconds(d time.Duration) string {
	if d == Never {
		return "–"
	}
	return fmt.Sprintf("%.1f", d.Seconds())
}

// WriteSection replaces what a file has between the lines <!-- NAME --> and <!-- /NAME -->.
func WriteSection(file, name, section string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := []byte("<!-- "+name+" -->\n"), []byte("<!-- /"+name+" -->")
	before, rest, found := bytes.Cut(text, begin)
	_, after, closed := bytes.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s lacks the markers %s and %s; add them, each on a line of its own", file, bytes.TrimSpace(begin), end)
	}
	text = bytes.Join([][]byte{before, begin, []byte("\n" + strings.TrimSpace(section) + "\n\n"), end, after}, nil)
	return os.WriteFile(file, text, 0o644)
}
