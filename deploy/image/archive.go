package main

import (
	"archive/tar"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platformImage is the image of one platform.
type platformImage struct {
	v1.Image
	platform v1.Platform
}

// writeArchive writes the images to path as a tar of an OCI layout and returns the digest of their
// index. The layout is collected in the directory work, which must not exist.
func writeArchive(path, work string, name reference.NamedTagged, images []platformImage) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.Image, Descriptor: v1.Descriptor{Platform: &i.platform}})
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	root, err := layout.Write(work, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	err = root.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          name.String(),
		"org.opencontainers.image.ref.name": name.Tag(),
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	legacy, err := dockerManifest(name, images)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := root.WriteFile("manifest.json", legacy, 0o644); err != nil {
		return v1.Hash{}, err
	}
	return digest, tarDirectory(path, work)
}

// dockerManifest returns the manifest.json by which Docker engines without containerd's image store
// find the images among the blobs of the layout. That format knows no platforms: the first image
// has the plain name, the others have their architecture after the tag.
func dockerManifest(name reference.NamedTagged, images []platformImage) ([]byte, error) {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	var entries []entry
	for n, i := range images {
		config, err := i.ConfigName()
		if err != nil {
			return nil, err
		}
		layers, err := i.Layers()
		if err != nil {
			return nil, err
		}
		tag := reference.FamiliarString(name)
		if n > 0 {
			tag += "-" + i.platform.Architecture
		}
		e := entry{Config: blob(config), RepoTags: []string{tag}}
		for _, layer := range layers {
			h, err := layer.Digest()
			if err != nil {
				return nil, err
			}
			e.Layers = append(e.Layers, blob(h))
		}
		entries = append(entries, e)
	}
	return json.Marshal(entries)
}

// tarDirectory writes the content of a directory to a tar file, in lexical order and without what
// differs between machines.
func tarDirectory(path, dir string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			return writeEntry(w, file{name + "/", 0o755, nil}, time.Unix(0, 0))
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return writeEntry(w, file{name, 0o644, data}, time.Unix(0, 0))
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}
