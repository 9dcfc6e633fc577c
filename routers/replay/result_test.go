package replay

import (
	"bytes"
	"encoding/xml"
	"io"
	"testing"
)

func TestReplayMedianOfEachFigure(t *testing.T) {
	got := Median([]*Result{
		{Policy: "p", HitRate: 0.1, TTFTMean: 30, Refused: 1},
		{Policy: "p", HitRate: 0.3, TTFTMean: 10, Refused: 7},
		{Policy: "p", HitRate: 0.2, TTFTMean: 20, Refused: 2},
	})
	if got.Policy != "p" || got.HitRate != 0.2 || got.TTFTMean != 20 || got.Refused != 2 {
		t.Errorf("%+v", *got)
	}
}

func TestReplayTableAndPlotOfAnyResult(t *testing.T) {
	results := []*Result{
		{Policy: "<empty>"},
		mustRun(t, conversations(1, 5, 5), "RoundRobinRouter", fleetOf(3)),
	}
	var table, plot bytes.Buffer
	if err := Table(&table, results); err != nil || bytes.Count(table.Bytes(), []byte("\n")) != 3 {
		t.Errorf("%v\n%s", err, table.String())
	}
	if err := Plot(&plot, "a <title>", results); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(plot.Bytes(), []byte("NaN")) {
		t.Error("the plot has coordinates that are not numbers")
	}
	for decoder := xml.NewDecoder(&plot); ; {
		_, err := decoder.Token()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
