package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth/config"
)

// A file with one model, an unknown key and a key without effect: all problems and warnings are
// reported, each with its position.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "berth.yaml")
	load := func(text string) (*config.Config, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		c, warnings, err := config.Load(path, config.Checks{})
		for _, w := range warnings {
			fmt.Printf("warning in line %d, column %d: %s\n", w.Line, w.Column, w.Message)
		}
		return c, err
	}

	_, err = load(`llm_configs:
  - model_loading_config: {model_id: qwen}
    timeouts: {first_bite_s: 30}
    replicas: [{url: "http://10.0.0.11"}, {url: "ftp://10.0.0.12"}]
`)
	if problems, ok := errors.AsType[config.Problems](err); ok {
		for _, p := range problems {
			fmt.Printf("problem in line %d, column %d: %s\n", p.Line, p.Column, p.Message)
		}
	}

	c, err := load(`llm_configs:
  - model_loading_config: {model_id: qwen}
    accelerator_type: L4
    replicas: [{url: "http://10.0.0.11/v1"}]
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	model := c.Models[0]
	fmt.Println(model.ID, model.Replicas[0].URL, model.MaxOngoingRequests, model.IdleTimeout)
	// Output:
	// problem in line 3, column 16: unknown key first_bite_s; did you mean first_byte_s?
	// problem in line 4, column 49: url must start with http:// or https://
	// warning in line 3, column 5: keys without effect, since only Ray's launcher and controller use them: accelerator_type
	// qwen http://10.0.0.11 256 5m0s
}
