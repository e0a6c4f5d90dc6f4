//go:build linux || darwin || freebsd

package filefence

import (
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/fstype"
)

// Two machines that share a file system whose flock excludes neither would both compare with
// one sidecar, and both replace the file.
func TestNetworkFileSystem(t *testing.T) {
	if err := checkKind("/mnt", fstype.Info{Name: "nfs", Kind: fstype.Networked}); !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(err.Error(), "nfs") {
		t.Errorf("nfs: %v", err)
	}
	for _, k := range []fstype.Kind{fstype.Local, fstype.Unknown, fstype.FUSE} {
		if err := checkKind("/mnt", fstype.Info{Name: "x", Kind: k}); err != nil {
			t.Errorf("kind %d: %v", k, err)
		}
	}
	if _, err := resolve(t.TempDir() + "/f"); err != nil {
		t.Errorf("here: %v", err)
	}
}
