package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// The files that say what the others are.
const (
	sumsFile       = "SHA256SUMS"
	provenanceFile = "provenance.intoto.json"
	signedAs       = "hasp-release" // the namespace of ssh-keygen -Y: a signature for something else is none of a release
)

// sum is a file of the release, and its SHA-256.
type sum struct{ name, hash string }

// sums are those of all files that there are, in the order of their names.
func (r *release) sums() ([]sum, error) {
	var all []sum
	err := filepath.WalkDir(r.out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.out, path)
		hash := sha256.Sum256(data)
		all = append(all, sum{filepath.ToSlash(name), hex.EncodeToString(hash[:])})
		return err
	})
	return all, err
}

// writeProvenance writes of which commit and by what the files were made: a statement of in-toto
// (https://in-toto.io/Statement/v1) with SLSA's provenance (https://slsa.dev/provenance/v1). It has
// neither a time nor a number of the build: the same commit makes the same statement.
func (r *release) writeProvenance() error {
	commit, err := r.run("git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	made, err := r.sums()
	if err != nil {
		return err
	}
	type object = map[string]any
	var subjects []object
	for _, s := range made {
		subjects = append(subjects, object{"name": s.name, "digest": object{"sha256": s.hash}})
	}
	statement := object{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          "https://" + module + "/blob/" + r.version + "/dev/packaging",
				"externalParameters": object{"version": r.version, "platforms": r.platforms},
				"internalParameters": object{"go": runtime.Version()},
				"resolvedDependencies": []object{{
					"uri": "git+https://" + module + "@refs/tags/" + r.version, "digest": object{"gitCommit": strings.TrimSpace(commit)},
				}},
			},
			// The signature of the checksums says who built them: make release knows no build service.
			"runDetails": object{"builder": object{"id": "https://" + module + "/blob/" + r.version + "/Makefile"}},
		},
	}
	data, err := json.MarshalIndent(statement, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, provenanceFile), append(data, '\n'), 0o644)
}

// writeSums writes the checksums of all files, as sha256sum -c reads them, and signs them if there
// is a key: for OpenSSH, which is on most machines and asks for the key's passphrase itself.
func (r *release) writeSums() error {
	all, err := r.sums()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, s := range all {
		text.WriteString(s.hash + "  " + s.name + "\n")
	}
	path := filepath.Join(r.out, sumsFile)
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil || r.key == "" {
		return err
	}
	_, err = r.run("ssh-keygen", "-Y", "sign", "-n", signedAs, "-f", r.key, path)
	return err
}
