package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The statement names the commit of the tag and every file, with its checksum.
func TestProvenance(t *testing.T) {
	r := released(t)
	data, err := os.ReadFile(filepath.Join(r.out, provenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	type digest struct{ SHA256, GitCommit string }
	var statement struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest digest
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct {
					URI    string
					Digest digest
				}
			}
		}
	}
	if err := json.Unmarshal(data, &statement); err != nil {
		t.Fatal(err)
	}
	if statement.Type != "https://in-toto.io/Statement/v1" || statement.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("%s, %s", statement.Type, statement.PredicateType)
	}
	from := statement.Predicate.BuildDefinition.ResolvedDependencies
	commit := strings.TrimSpace(do(t, "git", "-C", r.root, "rev-parse", version+"^{commit}"))
	if len(from) != 1 || from[0].Digest.GitCommit != commit || !strings.HasSuffix(from[0].URI, "@refs/tags/"+version) {
		t.Errorf("made of %+v, want %s", from, commit)
	}
	named := map[string]string{}
	for _, s := range statement.Subject {
		named[s.Name] = s.Digest.SHA256
	}
	sums, err := r.sums()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sums {
		if s.name != sumsFile && s.name != provenanceFile && named[s.name] != s.hash {
			t.Errorf("%s: %q, want %s", s.name, named[s.name], s.hash)
		}
	}
}

// A signature is of these checksums, by this key and for a release: else ssh-keygen refuses it.
func TestSignature(t *testing.T) {
	need(t, "ssh-keygen")
	dir := t.TempDir()
	key, signers := filepath.Join(dir, "key"), filepath.Join(dir, "signers")
	do(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(signers, append([]byte("ana@example.org "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &release{root: dir, out: filepath.Join(dir, "dist"), key: key}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.out, "hasp"), []byte("a program"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.writeSums(); err != nil {
		t.Fatal(err)
	}
	verify := func(namespace string) error {
		sums, err := os.Open(filepath.Join(r.out, sumsFile))
		if err != nil {
			t.Fatal(err)
		}
		defer sums.Close()
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "ana@example.org", "-n", namespace, "-s", sums.Name()+".sig")
		cmd.Stdin = sums
		return cmd.Run()
	}
	if err := verify(signedAs); err != nil {
		t.Errorf("the signature: %v", err)
	}
	if err := verify("file"); err == nil {
		t.Error("it also stands for something else")
	}
	if err := os.WriteFile(filepath.Join(r.out, sumsFile), []byte("0000  hasp\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := verify(signedAs); err == nil {
		t.Error("other checksums have it too")
	}
	missing := release{version: version, root: dir, out: filepath.Join(dir, "other"), key: filepath.Join(dir, "none")}
	if err := missing.make(); err == nil || !strings.Contains(err.Error(), "the key to sign with") {
		t.Errorf("without the key: %v", err)
	}
}

// Each link of a page that is installed leads to an installed file, or to the repository at the
// version's tag, where the file is.
func TestLinksOfPages(t *testing.T) {
	need(t, "dpkg-deb")
	root := t.TempDir()
	do(t, "dpkg-deb", "-x", debOf(t), root)
	pages := filepath.Join(root, filepath.FromSlash(pagesDir))
	links, away := 0, 0
	for name, text := range tree(t, pages) {
		if filepath.Ext(name) != ".md" {
			continue
		}
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target := found[1]
			path := filepath.Join(pages, filepath.Dir(name), target)
			links++
			if source, ok := strings.CutPrefix(target, "https://"+module+"/blob/"+version+"/"); ok {
				path = filepath.Join(released(t).root, source)
				away++
			} else if strings.Contains(target, ":") {
				continue
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: dead link %s", name, target)
			}
		}
	}
	if links < 100 || away == 0 {
		t.Errorf("%d links, %d of them to the repository: the test sees too little", links, away)
	}
	for _, name := range []string{"dev/packaging/kubernetes/base/locks.yaml", "dev/packaging/serve/kubernetes.yaml", "dev/packaging/Dockerfile"} {
		if _, err := os.Stat(filepath.Join(pages, name)); err != nil {
			t.Errorf("not installed: %v", err)
		}
	}
}
