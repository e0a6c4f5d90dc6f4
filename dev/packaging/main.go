// Command packaging makes the files of a release: for each platform a static binary, an archive, a
// list of what is in the binary (SBOM) and, for Linux, a Debian package; of which commit all were
// made (provenance); and their checksums, signed if there is a key.
//
//	packaging -version v1.2.3 -out dist [-root ../..] [-platforms linux/amd64,darwin/arm64] [-sign ~/.ssh/release]
//
// The same commit makes the same bytes, on any machine, with the same version of Go. It must be the
// commit of the version's tag; make release calls it. Before the tags are published, GOPROXY begins
// with the directory that command modules has made of them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

const (
	allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"
	module       = "github.com/hasplock/hasp"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "the version, such as v1.2.3")
	flag.StringVar(&r.root, "root", ".", "the repository")
	flag.StringVar(&r.out, "out", "dist", "the directory to make")
	flag.StringVar(&r.maintainer, "maintainer", "", "whom users of the Debian package may write to, as NAME <ADDRESS> (default: who made the commit)")
	flag.StringVar(&r.key, "sign", "", "the OpenSSH key to sign the checksums with, a file (default: they are not signed)")
	platforms := flag.String("platforms", allPlatforms, "for which platforms")
	flag.Parse()
	r.platforms = strings.Split(*platforms, ",")
	err := errors.New("it takes no arguments")
	if flag.NArg() == 0 {
		err = r.make()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

// release says what to make.
type release struct {
	root      string // of the repository
	version   string
	out       string
	platforms []string // GOOS/GOARCH

	maintainer string
	key        string
}

func (r *release) check() error {
	if !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`).MatchString(r.version) {
		return fmt.Errorf("%q is not a version such as v1.2.3", r.version)
	}
	if r.maintainer != "" && !regexp.MustCompile(`^[^<>\n]+ <[^<>@\s]+@[^<>@\s]+>$`).MatchString(r.maintainer) {
		return fmt.Errorf("%q is no maintainer such as Ana Example <ana@example.org>", r.maintainer)
	}
	for _, p := range r.platforms {
		if !slices.Contains(strings.Split(allPlatforms, ","), p) {
			return fmt.Errorf("%q is not one of %s", p, allPlatforms)
		}
	}
	if r.key != "" {
		key, err := filepath.Abs(r.key) // ssh-keygen runs in the repository
		if err == nil {
			_, err = os.Stat(key)
		}
		if err != nil {
			return fmt.Errorf("the key to sign with: %w", err)
		}
		r.key = key
	}
	if _, err := os.Stat(r.out); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there already: remove it first", r.out)
	}
	changed, err := r.run("git", "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("commit or remove first what has changed:\n%s", changed)
	}
	if err != nil {
		return err
	}
	// What go install makes of the version must be what the binaries have.
	tags, err := r.run("git", "tag", "--points-at", "HEAD")
	if err == nil && !slices.Contains(strings.Fields(tags), r.version) {
		err = fmt.Errorf("this commit is not that of the tag %s: git checkout %[1]s first (go run ./internal/modules release %[1]s PROXY makes the tag)", r.version)
	}
	return err
}

// make makes all of it.
func (r *release) make() (err error) {
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	when, err := r.when()
	if err != nil {
		return err
	}
	maintainer, err := r.packager()
	if err != nil {
		return err
	}
	own, err := os.MkdirTemp("", "hasp-packaging-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(own)
	// Programs for this machine write the pages and completions for all.
	if err := r.build(runtime.GOOS+"/"+runtime.GOARCH, own); err != nil {
		return err
	}
	common, err := r.commonFiles(own)
	if err != nil {
		return err
	}
	for _, platform := range r.platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		programs := filepath.Join(r.out, "bin", goos+"_"+goarch)
		binary := filepath.Join(programs, "hasp")
		base := filepath.Join(r.out, fmt.Sprintf("hasp_%s_%s_%s", strings.TrimPrefix(r.version, "v"), goos, goarch))
		if err := r.build(platform, programs); err != nil {
			return err
		}
		licenses, err := r.licenses(binary)
		if err != nil {
			return err
		}
		files := slices.Concat(common, []file{
			{"usr/bin/hasp", binary, nil, 0o755}, {"usr/bin/hasp-torture", filepath.Join(programs, "hasp-torture"), nil, 0o755}, {"usr/share/doc/hasp/copyright", "", licenses, 0o644},
		})
		if err := writeSBOM(base+".cdx.json", binary, r.version, platform); err != nil {
			return err
		}
		if err := writeArchive(base+".tar.gz", filepath.Base(base), files, when); err != nil {
			return err
		}
		if goos == "linux" {
			if err := writeDeb(base+".deb", goarch, r.version, maintainer, files, when); err != nil {
				return err
			}
		}
	}
	if err := r.writeProvenance(); err != nil {
		return err
	}
	return r.writeSums()
}
