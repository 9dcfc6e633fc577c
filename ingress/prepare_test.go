package ingress

import (
	"testing"

	"berth/internal/openai"
)

// hashPromptOf returns the block hashes of the prompt of a body, made while the body is scanned.
func hashPromptOf(t testing.TB, body []byte, model string, size int) []uint64 {
	h := openai.NewPromptHasher(size)
	defer h.Release()
	f, err := openai.ScanBody(nil, body, h)
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	blocks, _ := h.Blocks(f, body, model, "", size)
	return blocks
}

func blocksOf(t testing.TB, body, model string, size int) []uint64 {
	t.Helper()
	return hashPromptOf(t, []byte(body), model, size)
}
