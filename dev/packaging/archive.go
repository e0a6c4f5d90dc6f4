package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"os"
	"path"
	"slices"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// writeArchive writes the files below dir, with nothing of this machine: no owner, no time.
func writeArchive(to, dir string, all []file, when time.Time) error {
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zipped)
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	for _, f := range all {
		data, err := f.content()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path.Join(dir, f.path), Mode: int64(f.mode), Size: int64(len(data)), ModTime: when, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// writeDeb writes a package for dpkg. It has no scripts: to install it changes no service.
func writeDeb(to, arch, version, maintainer string, all []file, when time.Time) (err error) {
	temp, err := os.MkdirTemp("", "hasp-deb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "hasp", Arch: arch, Platform: "linux", Version: version, Section: "admin", Priority: "optional", MTime: when,
		Maintainer: maintainer, License: "Apache-2.0", DisableGlobbing: true,
		Description: "distributed locks for commands\n hasp runs a command under a lock, so that only one runs at a time: among the\n" +
			" processes of a machine with no set-up, among machines through Redis, etcd,\n ZooKeeper, PostgreSQL or MySQL.",
	})
	for i, f := range all {
		from := f.from
		if from == "" {
			from = path.Join(temp, string(rune('a'+i%26))+path.Base(f.path))
			if err := os.WriteFile(from, f.text, 0o644); err != nil {
				return err
			}
		}
		info.Contents = append(info.Contents, &files.Content{
			Source: from, Destination: "/" + f.path,
			FileInfo: &files.ContentFileInfo{Mode: f.mode, MTime: when, Owner: "root", Group: "root"},
		})
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(deb.Default.Package(info, out), out.Close())
}
