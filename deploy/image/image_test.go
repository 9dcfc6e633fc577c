package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// build builds the image and returns the archive.
func build(t *testing.T, name, platforms string) (archive string) {
	t.Helper()
	archive = filepath.Join(t.TempDir(), "berth.tar")
	o := options{out: archive, name: name, source: "../..", platforms: strings.Split(platforms, ","), created: time.Unix(0, 0).UTC()}
	if err := o.run(); err != nil {
		t.Fatal(err)
	}
	return archive
}

// extract extracts a tar archive below dir.
func extract(t *testing.T, archive io.Reader, dir string) (modes map[string]os.FileMode) {
	t.Helper()
	modes = map[string]os.FileMode{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return modes
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, want root", h.Name, h.Uid, h.Gid)
		}
		name := strings.TrimSuffix(h.Name, "/")
		modes[name] = h.FileInfo().Mode()
		path := filepath.Join(dir, name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, data, h.FileInfo().Mode().Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// openIndex returns the images of an archive by architecture.
func openIndex(t *testing.T, archive string) map[string]v1.Image {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	extract(t, f, dir)
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := outer.IndexManifest()
	if err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %+v, %v", top, err)
	}
	if got := top.Manifests[0].Annotations["io.containerd.image.name"]; !strings.HasSuffix(got, "/berth:v1.2.3") {
		t.Errorf("containerd imports the image as %q", got)
	}
	index, err := outer.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	for _, m := range manifest.Manifests {
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		images[m.Platform.String()] = image
	}
	return images
}

func TestImageIsReproducible(t *testing.T) {
	first, err := os.ReadFile(build(t, "berth:v1.2.3", "linux/amd64"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // a tar has whole seconds
	again, err := os.ReadFile(build(t, "berth:v1.2.3", "linux/amd64"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again) {
		t.Error("two builds of the same sources differ")
	}
	other, err := os.ReadFile(build(t, "berth:v1.2.4", "linux/amd64"))
	if err != nil || bytes.Equal(first, other) {
		t.Errorf("another version is the same image: %v", err)
	}
}

func TestImageHoldsStaticBinariesForEachPlatform(t *testing.T) {
	images := openIndex(t, build(t, "berth:v1.2.3", "linux/amd64,linux/arm64"))
	for platform, machine := range map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64} {
		image, ok := images[platform]
		if !ok {
			t.Fatalf("no image for %s among %d", platform, len(images))
		}
		root := t.TempDir()
		modes := extract(t, mutate.Extract(image), root)
		checkConfig(t, image)
		checkRoots(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
		checkMaterials(t, root)
		if modes["usr/bin/berth"] != 0o755 || modes["tmp"] != os.ModeDir|os.ModeSticky|0o777 {
			t.Errorf("%s: modes %v", platform, modes)
		}
		binary, err := elf.Open(filepath.Join(root, "usr/bin/berth"))
		if err != nil {
			t.Fatal(err)
		}
		if libraries, _ := binary.ImportedLibraries(); binary.Machine != machine || len(libraries) > 0 {
			t.Errorf("%s: a binary for %v that needs %v", platform, binary.Machine, libraries)
		}
		binary.Close()
	}
}

// checkConfig checks what a container engine starts and shows.
func checkConfig(t *testing.T, image v1.Image) {
	t.Helper()
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || strings.Join(append(c.Config.Entrypoint, c.Config.Cmd...), " ") != "berth serve" {
		t.Errorf("starts %v %v as %q", c.Config.Entrypoint, c.Config.Cmd, c.Config.User)
	}
	if c.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" || len(c.History) != 2 {
		t.Errorf("labels %v, history %v", c.Config.Labels, c.History)
	}
}

func checkRoots(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte("BEGIN CERTIFICATE")); n < 50 || !x509.NewCertPool().AppendCertsFromPEM(data) {
		t.Errorf("%d certificates", n)
	}
}

// checkMaterials compares the bill of materials with what Go itself says about the binary.
func checkMaterials(t *testing.T, root string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "usr/share/sbom/berth.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sbom struct {
		BOMFormat, SpecVersion string
		Metadata               struct{ Component component }
		Components             []component
	}
	if err := json.Unmarshal(data, &sbom); err != nil {
		t.Fatal(err)
	}
	if sbom.BOMFormat != "CycloneDX" || sbom.Metadata.Component.Version != "v1.2.3" {
		t.Errorf("%s of %+v", sbom.BOMFormat, sbom.Metadata)
	}
	out, err := exec.Command("go", "version", "-m", filepath.Join(root, "usr/bin/berth")).Output()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, c := range sbom.Components {
		listed[c.Name+" "+c.Version] = true
	}
	want := 1 // the standard library
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); fields[0] == "dep" {
			want++
			if !listed[fields[1]+" "+fields[2]] {
				t.Errorf("the bill of materials lacks %s %s", fields[1], fields[2])
			}
		}
	}
	if len(sbom.Components) != want || want < 20 {
		t.Errorf("%d components, want %d", len(sbom.Components), want)
	}
}

// TestImageRuns starts the binary on the image's own file system as the image's user. Without the
// rights for that, it only asks for the version.
func TestImageRuns(t *testing.T) {
	archive := build(t, "berth:v1.2.3", "linux/amd64")
	image, err := tarball.ImageFromPath(archive, nil) // as docker load reads it
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	extract(t, mutate.Extract(image), root)
	binary := filepath.Join(root, "usr/bin/berth")
	if out, err := exec.Command(binary, "--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "berth v1.2.3 ") {
		t.Fatalf("%s, %v", out, err)
	}
	if os.Getuid() != 0 {
		t.Log("not root: berth is not started in a file system of its own")
		return
	}
	config := "http: {address: '127.0.0.1:0'}\nadmin: {address: ''}\nllm_configs: [{model_loading_config: {model_id: demo}, simulated: {}}]\n"
	if err := os.WriteFile(filepath.Join(root, "berth.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "/usr/bin/berth", "serve", "--config", "/berth.yaml")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url := strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(line, "berth serves ")), "/v1")
	if err != nil || !strings.HasPrefix(url, "http://") {
		cancel()
		c.Wait()
		t.Fatalf("%q, %v, %s", line, err, log.String())
	}
	response, err := http.Get(url + "/readyz")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%+v, %v", response, err)
	}
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
}
