package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the unprivileged user and group of the image, numeric so that Kubernetes can verify
// runAsNonRoot.
const user = "65532"

// file is an entry of a layer. All belong to root and have the time of the build.
type file struct {
	name string // without a leading slash; directories end in one
	mode int64
	data []byte
}

// image returns the image of one platform: a layer with what every release shares, and one with the
// binary and its bill of materials.
func (o options) image(binary string, p *v1.Platform) (v1.Image, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	materials, err := billOfMaterials(binary, o.version)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		by    string
		files []file
	}{
		{"certificates and user", baseFiles()},
		{"berth " + o.version, []file{
			{"usr/", 0o755, nil},
			{"usr/bin/", 0o755, nil},
			{"usr/bin/berth", 0o755, program},
			{"usr/share/", 0o755, nil},
			{"usr/share/sbom/", 0o755, nil},
			{"usr/share/sbom/berth.cdx.json", 0o644, materials},
		}},
	} {
		layer, err := newLayer(l.files, o.created)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:     layer,
			History:   v1.History{Created: v1.Time{Time: o.created}, CreatedBy: l.by},
			MediaType: types.OCILayer,
		})
		if err != nil {
			return nil, err
		}
	}
	return o.configure(image, p)
}

// configure sets what a container engine starts: berth serve as an unprivileged user.
func (o options) configure(image v1.Image, p *v1.Platform) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User:         user + ":" + user,
		Env:          []string{"PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Entrypoint:   []string{"berth"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/",
		ExposedPorts: map[string]struct{}{"8000/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "berth",
			"org.opencontainers.image.description": "An OpenAI-compatible ingress in front of a fleet of LLM servers",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     o.version,
			"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(image, config)
}

// baseFiles returns the files that the binary needs around it: certificates for https replicas and
// trace collectors, and a name for the user. The certificates are Mozilla's as pinned by go.sum,
// not those of the building machine, so that every machine builds the same image. Roots with
// constraints that a PEM file cannot state are left out.
func baseFiles() []file {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer returns no error
		}
	}
	return []file{
		{"etc/", 0o755, nil},
		{"etc/group", 0o644, []byte("root:x:0:\nberth:x:" + user + ":\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nberth:x:" + user + ":" + user + ":berth:/:/sbin/nologin\n")},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, roots.Bytes()},
		{"tmp/", 0o1777, nil},
	}
}

// newLayer returns a gzip layer with the files in the given order.
func newLayer(files []file, modified time.Time) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		if err := writeEntry(w, f, modified); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// writeEntry writes a file or directory to a tar archive.
func writeEntry(w *tar.Writer, f file, modified time.Time) error {
	h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: modified, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
	if f.name[len(f.name)-1] == '/' {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.data)
	return err
}
