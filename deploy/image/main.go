// Command image builds berth's container image without a container engine: static binaries on an
// otherwise empty file system, written as one archive that `docker load`, `ctr images import`,
// `kind load image-archive` and `skopeo copy oci-archive:` read.
//
// The same sources, Go release and options give the same digest.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// options are the inputs of a build.
type options struct {
	out, name, version, source string
	platforms                  []string // like linux/amd64
	created                    time.Time
}

func main() {
	o := options{created: time.Unix(0, 0).UTC()}
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	flag.StringVar(&o.out, "out", "berth.tar", "archive to write")
	flag.StringVar(&o.name, "name", "berth:dev", "name and tag of the image, with the registry's host if it has one")
	flag.StringVar(&o.version, "version", "", "version that the binary and the labels state; default: the tag")
	flag.StringVar(&o.source, "source", "../..", "directory of berth's module")
	flag.Parse()
	o.platforms = strings.Split(*platforms, ",")
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run builds the image, writes the archive and prints the digest.
func (o options) run() error {
	named, err := reference.ParseNormalizedNamed(o.name)
	if err != nil {
		return fmt.Errorf("-name %s: %w", o.name, err)
	}
	tagged, ok := reference.TagNameOnly(named).(reference.NamedTagged)
	if !ok {
		return fmt.Errorf("-name %s must have a tag and no digest", o.name)
	}
	o.version = cmp.Or(o.version, tagged.Tag())
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH must be a Unix time: %w", err)
		}
		o.created = time.Unix(seconds, 0).UTC()
	}
	work, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var images []platformImage
	for _, platform := range o.platforms {
		p, err := v1.ParsePlatform(platform)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return fmt.Errorf("-platforms: %q is not like linux/amd64", platform)
		}
		binary := filepath.Join(work, "berth-"+p.Architecture)
		if err := o.compile(binary, p); err != nil {
			return err
		}
		image, err := o.image(binary, p)
		if err != nil {
			return err
		}
		images = append(images, platformImage{image, *p})
	}
	digest, err := writeArchive(o.out, filepath.Join(work, "layout"), tagged, images)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s@%s\n", o.out, reference.FamiliarString(tagged), digest)
	return nil
}

// compile builds berth as README.md says, for one platform. A commit, which go build would record
// in a clone but not in an exported tree, is left out: the digest depends on the sources alone.
func (o options) compile(binary string, p *v1.Platform) error {
	c := exec.Command("go", "build", "-tags", "nomsgpack", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version="+o.version, "-o", binary, "./cmd/berth")
	c.Dir = o.source
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOFLAGS=", "GOWORK=off",
		"GOAMD64=v1", "GOARM64=v8.0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %s: %w\n%s", p, err, out)
	}
	return nil
}
