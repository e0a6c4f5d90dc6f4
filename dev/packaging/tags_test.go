package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// schemes are what a build has without each of the tags.
var schemes = map[string][]string{
	"noetcd": {"etcd"}, "nomysql": {"mariadb", "mysql"}, "nopostgres": {"postgres", "postgresql"},
	"noredis": {"redis", "rediss", "redlock", "redlocks", "valkey", "valkeys"}, "nozookeeper": {"zookeeper"}, "noexporter": nil,
	"nohttp": {"hasp+http", "hasp+https"}, "noserve": nil, "nokube": {"kube"}, "nos3": {"s3"},
}

// Each store can be left out, and all of them: the build says which are in. The
// tags are those that docs/INSTALL.md lists.
func TestTags(t *testing.T) {
	doc, err := os.ReadFile("../../docs/INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	all, none := []string{"grpcnotrace"}, []string{"grpcnotrace"}
	builds := map[string][]string{"all stores": all}
	for tag := range schemes {
		builds[tag] = append(slices.Clone(all), tag)
		none = append(none, tag)
		if !strings.Contains(string(doc), "| `"+tag+"` |") {
			t.Errorf("docs/INSTALL.md has no row for %s", tag)
		}
	}
	builds["no store"] = none
	builds["one tag"] = append(slices.Clone(none), "fileonly") // which needs none of the others
	sizes := map[string]int64{}
	for name, tags := range builds {
		hasp := filepath.Join(t.TempDir(), "hasp")
		build := exec.Command("go", "build", "-ldflags=-w", "-tags", strings.Join(tags, ","), "-o", hasp, ".")
		if name == "one tag" {
			build.Args[4] = "grpcnotrace,fileonly"
		}
		build.Dir, build.Env = "../../cmd/hasp", append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		info, err := os.Stat(hasp)
		if err != nil {
			t.Fatal(err)
		}
		sizes[name] = info.Size()
		var v struct{ Stores []string }
		if err := json.Unmarshal([]byte(do(t, hasp, "version", "--json")), &v); err != nil {
			t.Fatal(err)
		}
		want := []string{"file"}
		for tag, with := range schemes {
			if !slices.Contains(tags, tag) {
				want = append(want, with...)
			}
		}
		slices.Sort(want)
		if !slices.Equal(v.Stores, want) {
			t.Errorf("%s: %q, want %q", name, v.Stores, want)
		}
		for _, with := range schemes {
			for _, scheme := range with {
				out, _ := exec.Command(hasp, "ls", "--store", scheme+"://").CombinedOutput()
				if left := strings.Contains(string(out), "built without "+scheme+"://\n"); left == slices.Contains(v.Stores, scheme) {
					t.Errorf("%s: hasp ls --store %s:// says %s", name, scheme, out)
				}
			}
		}
		out, _ := exec.Command(hasp, "exporter", "--max-names", "0").CombinedOutput()
		if with := strings.Contains(string(out), "greater than zero"); with == slices.Contains(tags, "noexporter") {
			t.Errorf("%s: hasp exporter says %s", name, out)
		}
		out, _ = exec.Command(hasp, "serve", "--max-locks", "0").CombinedOutput()
		if with := strings.Contains(string(out), "greater than zero"); with == slices.Contains(tags, "noserve") {
			t.Errorf("%s: hasp serve says %s", name, out)
		}
	}
	for name, size := range sizes {
		t.Logf("%-12s %4.1f MB", name, float64(size)/1e6)
		if name != "all stores" && size >= sizes["all stores"] {
			t.Errorf("%s is not smaller", name)
		}
	}
	if sizes["all stores"] > 32e6 || sizes["no store"] > 9e6 {
		t.Errorf("larger than docs/INSTALL.md says: %v", sizes)
	}
}
