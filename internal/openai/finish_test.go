package openai

import "testing"

func TestAbortedReadsTheFinishReason(t *testing.T) {
	for text, want := range map[string]bool{
		`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort","stop_reason":null}]}`:     true,
		`{"choices":[{"finish_reason":"stop"},{"finish_reason" : ` + "\n\t" + `"abort"}]}`:                   true,
		`{"note":"abort","choices":[{"finish_reason":"abort"}]}`:                                             true,
		`{"choices":[{"finish_reason":"length"}]}`:                                                           false,
		`{"choices":[{"finish_reason":null,"delta":{"content":"abort"}}]}`:                                   false,
		`{"choices":[{"message":{"content":"say \"finish_reason\":\"abort\" now"},"finish_reason":"stop"}]}`: false,
		`{"choices":[{"message":{"content":"\\\"finish_reason\\\":\\\"abort\\\""},"finish_reason":"stop"}]}`: false,
		`{"stop_reason":"abort","abort":"finish_reason"}`:                                                    false,
		`{"finish_reason":"aborted"}`:                                                                        false,
		`"abort"`:                                                                                            false,
		``:                                                                                                   false,
	} {
		if got := Aborted([]byte(text)); got != want {
			t.Errorf("Aborted(%s) = %t, want %t", text, got, want)
		}
	}
}
