package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes which modules are in a binary, by what Go has recorded in it, as CycloneDX. It
// has neither a time nor a serial number: the same binary makes the same list.
func writeSBOM(to, binary, version, platform string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	own := component(info.Main.Path, version, "")
	own.Type = cyclonedx.ComponentTypeApplication
	own.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	own.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	own.Properties = &[]cyclonedx.Property{{Name: "hasp:platform", Value: platform}}
	all := []cyclonedx.Component{component("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	edges := []string{all[0].BOMRef}
	for _, m := range info.Deps {
		c := component(m.Path, m.Version, m.Sum)
		all = append(all, c)
		edges = append(edges, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &own}
	bom.Components = &all
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: own.BOMRef, Dependencies: &edges}}
	var b bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("encode the SBOM: %w", err)
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// component is a module. goSum is as in go.sum, "" if there is none.
func component(path, version, goSum string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + version
	c := cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(goSum, "h1:")); err == nil && len(sum) == sha256.Size {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}
